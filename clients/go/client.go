// Package dq is a client of dq, the delay queue. docs/CLIENTS.md of dq has the examples.
//
// Client adds, shows and removes jobs, and reserves those of pull topics. Work is a worker for pull topics. Webhook
// verifies the callbacks of push topics.
package dq

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// The pause before the second try, and the longest one. Each pause is twice as long as the one before it.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 2 * time.Second
)

// textMax is how many characters of an answer or a reason dq keeps.
const textMax = 200

// Config says where dq is, and how long the client waits and tries again. A Config without values works with the
// defaults.
type Config struct {
	// URL and Token default to the variables DQ_URL and DQ_TOKEN of the environment, as for the command dq, and then
	// to http://127.0.0.1:8088.
	URL, Token string
	// Timeout is how long one try may take. Default: 5 s.
	Timeout time.Duration
	// RetryFor is how long a request is tried again while dq cannot be reached or cannot do it now. Default: 10 s. A
	// negative value means one try, on a connection of its own.
	RetryFor time.Duration
	// Transport makes the connections. Default: one that uses no proxy.
	Transport http.RoundTripper
}

// Client is a client of dq over HTTP, for any number of goroutines.
type Client struct {
	url, token        string
	timeout, retryFor time.Duration
	// Whether a request may be sent a second time. If not, no connection is kept, because it may break.
	mayRepeat bool
	http      *http.Client
}

// New returns a client. It does not connect yet.
func New(config Config) (*Client, error) {
	c := &Client{url: config.URL, token: config.Token, timeout: config.Timeout, retryFor: config.RetryFor}
	c.url = strings.TrimRight(firstOf(c.url, os.Getenv("DQ_URL"), "http://127.0.0.1:8088"), "/")
	c.token = firstOf(c.token, os.Getenv("DQ_TOKEN"))
	if u, err := url.Parse(c.url); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("the URL of dq must be http://… or https://…, not %s", c.url)
	}
	if c.timeout == 0 {
		c.timeout = 5 * time.Second
	}
	if c.retryFor == 0 {
		c.retryFor = 10 * time.Second
	}
	c.mayRepeat = c.retryFor > 0
	c.http = &http.Client{Transport: config.Transport}
	if c.http.Transport == nil {
		c.http.Transport = newTransport()
	}
	c.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return c, nil
}

func newTransport() *http.Transport {
	transport, isPlain := http.DefaultTransport.(*http.Transport)
	if !isPlain {
		// The program has put another one in its place.
		return &http.Transport{ForceAttemptHTTP2: true, MaxIdleConns: 100, IdleConnTimeout: 90 * time.Second}
	}
	transport = transport.Clone()
	transport.Proxy = nil
	return transport
}

// withoutRetries returns a client that uses the same connections, and makes one try.
func (c *Client) withoutRetries() *Client {
	once := *c
	once.retryFor = 0
	return &once
}

// Add stores a job.
func (c *Client) Add(ctx context.Context, topic string, job Job) (Added, error) {
	var added Added
	err := c.Do(ctx, "POST", jobsPath(topic), "", job.withID(), &added)
	if err == nil && added.Outcome == "" {
		err = badAnswer("the answer has no field outcome", nil)
	}
	return added, err
}

// AddMany stores up to 10,000 jobs, and returns a result for each of them.
func (c *Client) AddMany(ctx context.Context, topic string, jobs []Job) ([]Result, error) {
	wanted := struct {
		Jobs []Job `json:"jobs"`
	}{make([]Job, len(jobs))}
	for i, job := range jobs {
		wanted.Jobs[i] = job.withID()
	}
	var answer struct {
		Results []struct {
			Error
			Added
		}
	}
	if err := c.Do(ctx, "POST", jobsPath(topic)+"/batch", "", wanted, &answer); err != nil {
		return nil, err
	}
	if answer.Results == nil {
		return nil, badAnswer("the answer has no field results", nil)
	}
	results := make([]Result, len(answer.Results))
	for i := range answer.Results {
		results[i].Added = answer.Results[i].Added
		if one := answer.Results[i].Error; one.Status >= 400 {
			results[i].Err = &one
		}
	}
	return results, nil
}

// Get returns a pending job or the latest dead letter of this id. If there is none, Code(err) is "not_found".
func (c *Client) Get(ctx context.Context, topic, id string) (Shown, error) {
	var shown Shown
	err := c.Do(ctx, "GET", jobPath(topic, id), "", nil, &shown)
	return shown, err
}

// Change changes the given fields of a job: delay, run_at, body, priority, max_attempts, ttr, headers, tags, path, url.
func (c *Client) Change(ctx context.Context, topic, id string, fields map[string]any) error {
	return c.Do(ctx, "PATCH", jobPath(topic, id), "", fields, nil)
}

// Delete removes a job, in any state. False: there is no such job. That is also the result if an earlier try has
// removed the job and its answer was lost.
func (c *Client) Delete(ctx context.Context, topic, id string) (bool, error) {
	err := c.Do(ctx, "DELETE", jobPath(topic, id), "", nil, nil)
	if Code(err) == "not_found" {
		return false, nil
	}
	return err == nil, err
}

// Run delivers a delayed job now.
func (c *Client) Run(ctx context.Context, topic, id string) error {
	return c.Do(ctx, "POST", jobPath(topic, id)+"/run", "", nil, nil)
}

// Reserve says which jobs Client.Reserve asks for.
type Reserve struct {
	Topics []string
	// Max is the largest number of jobs to reserve. Default: 1.
	Max int
	// Wait is how long to wait for the first job, at most a minute. Default: not at all.
	Wait time.Duration
	// Lease is how long the leases hold. Default: as the topic says.
	Lease time.Duration
}

// Reserve reserves due jobs of pull topics. If none comes in time, there is no error and no job.
func (c *Client) Reserve(ctx context.Context, wanted Reserve) ([]Reserved, error) {
	body := map[string]any{"topics": wanted.Topics}
	if wanted.Max != 0 {
		body["max"] = wanted.Max
	}
	if wait := span(wanted.Wait); wait != "" {
		body["wait"] = wait
	}
	if lease := span(wanted.Lease); lease != "" {
		body["lease"] = lease
	}
	var answer struct{ Jobs []Reserved }
	// The request has no Idempotency-Key. With a key, the reserve would continue after the client has gone away, and take
	// a job.
	err := c.do(ctx, "POST", "/v1/reserve", "", body, &answer, c.timeout+wanted.Wait)
	if err == nil && answer.Jobs == nil {
		err = badAnswer("the answer has no field jobs", nil)
	}
	return answer.Jobs, err
}

// Ack reports that a reserved job is done. The first 200 characters of the answer are kept in its record.
func (c *Client) Ack(ctx context.Context, job Reserved, answer string) error {
	_, err := c.report(ctx, job, "ack", map[string]any{"answer": cut(answer)})
	return err
}

// Nack reports that a reserved job could not be done. It is tried again as its topic says, or becomes a dead letter.
func (c *Client) Nack(ctx context.Context, job Reserved, reason string) error {
	_, err := c.report(ctx, job, "nack", map[string]any{"reason": cut(reason)})
	return err
}

// NackAfter does the same as Nack, and sets the time until the next attempt.
func (c *Client) NackAfter(ctx context.Context, job Reserved, reason string, delay time.Duration) error {
	fields := map[string]any{"reason": cut(reason), "delay": fmt.Sprintf("%dms", delay.Milliseconds())}
	_, err := c.report(ctx, job, "nack", fields)
	return err
}

// Extend makes the lease of a reserved job longer, and returns its new end. If lease is 0, the topic sets the length.
func (c *Client) Extend(ctx context.Context, job Reserved, lease time.Duration) (time.Time, error) {
	fields := map[string]any{}
	if lease > 0 {
		fields["lease"] = span(lease)
	}
	untilMs, err := c.report(ctx, job, "extend", fields)
	return time.UnixMilli(untilMs), err
}

// report returns the new end of the lease in Unix milliseconds, if the report extends it.
func (c *Client) report(ctx context.Context, job Reserved, report string, fields map[string]any) (int64, error) {
	if job.Token == "" {
		return 0, nil
	}
	fields["token"] = job.Token
	var answer struct {
		Outcome string `json:"outcome"`
		UntilMs int64  `json:"until_ms"`
	}
	err := c.do(ctx, "POST", jobPath(job.Topic, job.ID)+"/"+report, "", fields, &answer, c.timeout)
	if err == nil && answer.Outcome == "" {
		err = badAnswer("the answer has no field outcome", nil)
	}
	return answer.UntilMs, err
}

// Do makes any request of the API, such as Do(ctx, "PUT", "/v1/topics/orders", "", settings, nil), and decodes the
// answer into a pointer. key is the Idempotency-Key of a POST. The request may be sent again. So a POST without a key
// gets one.
func (c *Client) Do(ctx context.Context, method, path, key string, body, into any) error {
	if method == "POST" && key == "" {
		key = newUUID()
	}
	return c.do(ctx, method, path, key, body, into, c.timeout)
}

// do makes a request, and adds no key. A reserve needs none, and dq knows a repeated report by its token.
func (c *Client) do(ctx context.Context, method, path, key string, body, into any, timeout time.Duration) error {
	var text []byte
	if body != nil {
		var buffer bytes.Buffer
		encoder := json.NewEncoder(&buffer)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(body); err != nil {
			return fmt.Errorf("dq: the body of the request: %w", err)
		}
		text = buffer.Bytes()
	}
	deadline := time.Now().Add(c.retryFor)
	for pause := firstPause; ; pause *= 2 {
		answer, wait, err := c.try(ctx, method, path, key, text, timeout)
		if err == nil {
			if into == nil || len(answer) == 0 {
				return nil
			}
			if err := json.Unmarshal(answer, into); err != nil {
				return badAnswer(fmt.Sprintf("%s %s: %v", method, path, err), err)
			}
			return nil
		}
		if pause > longestPause {
			pause = longestPause
		}
		if least := pause/2 + jitter(pause/2); wait < least {
			wait = least
		}
		if !isTransient(err) || time.Now().Add(wait).After(deadline) {
			return err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// try makes one try, and returns the answer, or an error and its Retry-After.
func (c *Client) try(
	ctx context.Context, method, path, key string, text []byte, timeout time.Duration,
) ([]byte, time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(limited, method, c.url+path, bytes.NewReader(text))
	if err != nil {
		return nil, 0, err
	}
	request.Close = !c.mayRepeat
	request.Header.Set("accept", "application/json")
	request.Header.Set("user-agent", "dq-go/0.1")
	if text != nil {
		request.Header.Set("content-type", "application/json")
	}
	if key != "" {
		request.Header.Set("idempotency-key", key)
	}
	if c.token != "" {
		request.Header.Set("authorization", "Bearer "+c.token)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return nil, 0, noAnswer(ctx, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, 0, noAnswer(ctx, err)
	}
	if response.StatusCode < 300 && (len(answer) == 0 || json.Valid(answer)) {
		return answer, 0, nil
	}
	problem := &Error{}
	if json.Unmarshal(answer, problem) != nil || problem.Code == "" {
		detail := fmt.Sprintf("status %d without a problem of dq", response.StatusCode)
		problem = &Error{Code: "bad_answer", Detail: detail}
	}
	problem.Status = response.StatusCode
	seconds, _ := strconv.Atoi(response.Header.Get("retry-after"))
	return nil, time.Duration(seconds) * time.Second, problem
}

// jitter returns a random part of a duration, so that many clients do not try again at the same moment.
func jitter(d time.Duration) time.Duration {
	n, err := rand.Int(rand.Reader, big.NewInt(int64(d)))
	if err != nil {
		return 0
	}
	return time.Duration(n.Int64())
}

// noAnswer returns the error for a try without a complete answer.
func noAnswer(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var unknown x509.UnknownAuthorityError
	var wrongHost x509.HostnameError
	var invalid x509.CertificateInvalidError
	if errors.As(err, &unknown) || errors.As(err, &wrongHost) || errors.As(err, &invalid) {
		return &Error{Code: "untrusted", Detail: err.Error(), cause: err} // nobody becomes trusted by waiting
	}
	return &Error{Code: "no_answer", Detail: err.Error(), cause: err}
}

// badAnswer returns the error for an answer with success that is not one of dq.
func badAnswer(detail string, cause error) error {
	return &Error{Code: "bad_answer", Detail: detail, Status: http.StatusOK, cause: cause}
}

// cut returns the part of a text that dq keeps. Bytes that are not UTF-8 are replaced.
func cut(text string) string {
	if most := textMax * utf8.UTFMax; len(text) > most {
		text = text[:most]
	}
	characters := []rune(text)
	if len(characters) > textMax {
		characters = characters[:textMax]
	}
	return string(characters)
}

func jobsPath(topic string) string { return "/v1/topics/" + url.PathEscape(topic) + "/jobs" }

func jobPath(topic, id string) string { return jobsPath(topic) + "/" + url.PathEscape(id) }

func firstOf(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}
