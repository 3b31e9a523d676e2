package dq

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"time"
)

// Job is a job to add. Fields with their zero value are not sent; docs/HTTP.md ("Jobs") says what each means.
type Job struct {
	// ID: if it is empty, the client makes an id before its first try. So a retry does not add a second job.
	ID   string `json:"id"`
	Body any    `json:"body"`
	// Delay: 0 means that the topic sets the delay. For a job that is due at once, set RunAt to time.Now().
	Delay time.Duration `json:"-"`
	RunAt time.Time     `json:"-"`
	// Priority is "high", "normal", "low", or a number from 0 to 4294967295.
	Priority any `json:"priority,omitempty"`
	// OnConflict is "replace", "reject" or "keep".
	OnConflict  string            `json:"on_conflict,omitempty"`
	MaxAttempts int               `json:"max_attempts,omitempty"`
	TTR         time.Duration     `json:"-"`
	Headers     map[string]string `json:"headers,omitempty"`
	Tags        []string          `json:"tags,omitempty"`
	Path        string            `json:"path,omitempty"`
	URL         string            `json:"url,omitempty"`
	Then        any               `json:"then,omitempty"`
}

// MarshalJSON writes the job as the API takes it.
func (j Job) MarshalJSON() ([]byte, error) {
	type fields Job
	return json.Marshal(struct {
		fields
		Delay string `json:"delay,omitempty"`
		RunAt string `json:"run_at,omitempty"`
		TTR   string `json:"ttr,omitempty"`
	}{fields(j), span(j.Delay), moment(j.RunAt), span(j.TTR)})
}

// withID returns the job with an id.
func (j Job) withID() Job {
	if j.ID == "" {
		j.ID = newUUID()
		// Nobody else has this id. So a job with this id was added by an earlier try.
		if j.OnConflict == "" {
			j.OnConflict = "keep"
		}
	}
	return j
}

// Added says what became of an add.
type Added struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	// Outcome is "new", "replaced", "kept" or "spooled".
	Outcome string `json:"outcome"`
	DueMs   int64  `json:"due_ms"`
}

// Result says whether one job of a batch was stored, and how. Err is an *Error if it was not stored.
type Result struct {
	Added
	Err error
}

// Attempt is one attempt to deliver a job.
type Attempt struct {
	Attempt int    `json:"attempt"`
	Error   string `json:"error"`
	Status  int    `json:"status"`
}

// Shown is a job or its latest dead letter.
type Shown struct {
	Topic string `json:"topic"`
	ID    string `json:"id"`
	// State is "delayed", "ready", "leased" or "dead".
	State    string          `json:"state"`
	Body     json.RawMessage `json:"body"`
	DueMs    int64           `json:"due_ms"`
	Tags     []string        `json:"tags"`
	Attempts int             `json:"attempts"`
	Log      []Attempt       `json:"log"`
}

// Reserved is a job of a pull topic that this client may work on until its lease ends.
type Reserved struct {
	Topic   string            `json:"topic"`
	ID      string            `json:"id"`
	Body    json.RawMessage   `json:"body"`
	Headers map[string]string `json:"headers"`
	Tags    []string          `json:"tags"`
	Attempt int               `json:"attempt"`
	DueMs   int64             `json:"due_ms"`
	AddedMs int64             `json:"added_ms"`
	// Token is empty if the topic says on_reserve = "remove". The job is done then, and nothing is reported.
	Token        string `json:"token"`
	LeaseUntilMs int64  `json:"lease_until_ms"`
}

// span returns a duration as dq reads it: in milliseconds, rounded up, or "" if it is not positive.
func span(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return fmt.Sprintf("%dms", (d+time.Millisecond-1)/time.Millisecond)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// newUUID returns a UUID of version 7: the time in milliseconds, then 74 random bits.
func newUUID() string {
	var b [16]byte
	if _, err := rand.Read(b[6:]); err != nil {
		panic(err) // the system has no random numbers
	}
	ms := time.Now().UnixMilli()
	for i := 5; i >= 0; i-- {
		b[i] = byte(ms)
		ms >>= 8
	}
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
