package dq_test

// Tests against a daemon. clients/run starts it and sets the environment.

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"dq"
)

const (
	newSecret = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
	oldSecret = "the-old-secret"
	patience  = 20 * time.Second
)

var ctx = context.Background()

func connect(t *testing.T, config dq.Config) *dq.Client {
	t.Helper()
	client, err := dq.New(config)
	check(t, err)
	return client
}

// settings are those of a topic.
type settings map[string]any

func register(t *testing.T, client *dq.Client, topic string, wanted settings) string {
	t.Helper()
	check(t, client.Do(ctx, "PUT", "/v1/topics/"+topic, "", wanted, nil))
	return topic
}

// setUp returns a client and a topic of the test's own, because tests share the daemon.
func setUp(t *testing.T) (*dq.Client, string) {
	t.Helper()
	client := connect(t, dq.Config{})
	random := make([]byte, 6)
	rand.New(rand.NewSource(time.Now().UnixNano())).Read(random)
	topic := "go." + hex.EncodeToString(random)
	return client, register(t, client, topic, settings{"callback": "http://127.0.0.1:9/hook"})
}

func control(t *testing.T, path string) {
	t.Helper()
	response, err := http.Post(os.Getenv("DQ_CONTROL_URL")+path, "", nil)
	check(t, err)
	response.Body.Close()
	same(t, response.StatusCode, 204)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func same[T any](t *testing.T, given, wanted T) {
	t.Helper()
	if !reflect.DeepEqual(given, wanted) {
		t.Fatalf("given %v, wanted %v", given, wanted)
	}
}

func near(t *testing.T, ms int64, wanted time.Time) {
	t.Helper()
	if distance := time.UnixMilli(ms).Sub(wanted); distance.Abs() > 5*time.Second {
		t.Fatalf("%v away from %v", distance, wanted)
	}
}

func receive[T any](t *testing.T, from <-chan T) T {
	t.Helper()
	select {
	case value := <-from:
		return value
	case <-time.After(patience):
		t.Fatal("nothing came in time")
		panic("unreachable")
	}
}

func eventually(t *testing.T, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not in time")
		}
	}
}

type callback struct {
	header http.Header
	body   []byte
}

// sink is a receiver. It refuses the first callbacks.
func sink(t *testing.T, refusals int) (string, <-chan callback) {
	callbacks := make(chan callback, 16)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		status := http.StatusNoContent
		if refusals > 0 {
			refusals--
			status = http.StatusServiceUnavailable
		}
		w.WriteHeader(status)
		callbacks <- callback{r.Header, body}
	}))
	t.Cleanup(server.Close)
	return server.URL, callbacks
}

func TestAJobIsAddedShownChangedAndDeleted(t *testing.T) {
	client, topic := setUp(t)
	for _, id := range []string{"7", "p/ü 1", "..", "a?b#c%25", "batch"} {
		job := dq.Job{ID: id, Body: settings{"n": []any{1, "超时"}}, Delay: time.Hour, Tags: []string{"shop:7"}, Priority: 5}
		added, err := client.Add(ctx, topic, job)
		check(t, err)
		near(t, added.DueMs, time.Now().Add(time.Hour))
		added.DueMs = 0
		same(t, added, dq.Added{Topic: topic, ID: id, Outcome: "new"})
		shown, err := client.Get(ctx, topic, id)
		check(t, err)
		same(t, shown.State+string(shown.Body), `delayed{"n":[1,"超时"]}`)
		same(t, shown.Tags, []string{"shop:7"})
		added, err = client.Add(ctx, topic, dq.Job{ID: id, Body: 2, Delay: time.Minute})
		check(t, err)
		same(t, added.Outcome, "replaced")
		check(t, client.Change(ctx, topic, id, map[string]any{"body": 3, "delay": "2h"}))
		shown, err = client.Get(ctx, topic, id)
		check(t, err)
		same(t, string(shown.Body), "3")
		near(t, shown.DueMs, time.Now().Add(2*time.Hour))
		for _, isThere := range []bool{true, false} {
			isDeleted, err := client.Delete(ctx, topic, id)
			check(t, err)
			same(t, isDeleted, isThere)
		}
		_, err = client.Get(ctx, topic, id)
		same(t, dq.Code(err), "not_found")
	}
}

func TestTimesAreWhatTheCallerMeans(t *testing.T) {
	client, topic := setUp(t)
	at := time.Now().Add(3 * time.Hour).Truncate(time.Millisecond).In(time.FixedZone("", 8*3600))
	added, err := client.Add(ctx, topic, dq.Job{Body: 1, RunAt: at})
	check(t, err)
	same(t, added.DueMs, at.UnixMilli())
	added, err = client.Add(ctx, topic, dq.Job{Body: 1, Delay: 90 * time.Second})
	check(t, err)
	near(t, added.DueMs, time.Now().Add(90*time.Second))
}

func TestEachJobOfABatchHasItsResult(t *testing.T) {
	client, topic := setUp(t)
	_, err := client.Add(ctx, topic, dq.Job{ID: "there", Body: 1, Delay: time.Hour})
	check(t, err)
	results, err := client.AddMany(ctx, topic, []dq.Job{
		{Body: 1, Delay: time.Hour}, {Body: 2, ID: "two", Delay: time.Hour}, {Body: 3, ID: "there", OnConflict: "reject"},
		{Body: 4, ID: "there", OnConflict: "keep"}, {Body: 5, Priority: "urgent"},
	})
	check(t, err)
	var shown []string
	for _, result := range results {
		shown = append(shown, result.Outcome+dq.Code(result.Err))
	}
	same(t, shown, []string{"new", "new", "exists", "kept", "bad_field"})
	form := `^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`
	same(t, regexp.MustCompile(form).MatchString(results[0].ID), true)
	var e *dq.Error
	same(t, errors.As(results[4].Err, &e), true)
	same(t, e.Field, "priority")
	same(t, e.Status, 422)
}

func TestARefusalHasACode(t *testing.T) {
	client, topic := setUp(t)
	var e *dq.Error
	_, err := client.Add(ctx, "no-such-topic", dq.Job{Body: 1})
	same(t, errors.As(err, &e) && e.Code == "unknown_topic" && e.Status == 404, true)
	_, err = client.Add(ctx, topic, dq.Job{Body: 1, Priority: "urgent"})
	same(t, errors.As(err, &e) && e.Code == "bad_field" && e.Field == "priority", true)
	_, err = client.Reserve(ctx, dq.Reserve{Topics: []string{topic}})
	same(t, errors.As(err, &e) && e.Code == "not_pull" && !e.IsTransient(), true)
	_, err = connect(t, dq.Config{Token: "dq_wrong"}).Get(ctx, topic, "1")
	same(t, dq.Code(err), "unauthorized")
	_, err = dq.New(dq.Config{URL: "unix:/run/dq/http.sock"})
	same(t, err != nil, true)
	same(t, dq.Code(errors.New("other")), "")
}

func TestAServerThatDoesNotAnswerIsAnErrorInTime(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // it accepts, and never answers
	check(t, err)
	defer listener.Close()
	config := dq.Config{URL: "http://" + listener.Addr().String(), Timeout: 200 * time.Millisecond, RetryFor: 500 * time.Millisecond}
	started := time.Now()
	_, err = connect(t, config).Add(ctx, "t", dq.Job{Body: 1})
	same(t, dq.Code(err), "no_answer")
	same(t, errors.Is(err, context.DeadlineExceeded), true)
	took := time.Since(started)
	same(t, took > 200*time.Millisecond && took < 2*time.Second, true)

	ended, cancel := context.WithCancel(ctx)
	cancel()
	_, err = connect(t, config).Add(ended, "t", dq.Job{Body: 1})
	same(t, errors.Is(err, context.Canceled), true)
}

func TestAServerMustBeTrusted(t *testing.T) {
	_, topic := setUp(t)
	url := os.Getenv("DQ_TLS_URL")
	var e *dq.Error
	_, err := connect(t, dq.Config{URL: url}).Get(ctx, topic, "1")
	same(t, errors.As(err, &e) && e.Code == "untrusted" && !e.IsTransient(), true)
	// A connection that ends during the handshake says nothing about the certificate.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	defer listener.Close()
	go func() {
		if connection, err := listener.Accept(); err == nil {
			connection.Close()
		}
	}()
	_, err = connect(t, dq.Config{URL: "https://" + listener.Addr().String(), RetryFor: -1}).Get(ctx, topic, "1")
	same(t, errors.As(err, &e) && e.Code == "no_answer" && e.IsTransient(), true)
	trusted := x509.NewCertPool()
	pem, err := os.ReadFile(os.Getenv("DQ_CA_FILE"))
	check(t, err)
	same(t, trusted.AppendCertsFromPEM(pem), true)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}}
	trusting := connect(t, dq.Config{URL: url, Transport: transport})
	for _, outcome := range []string{"new", "replaced"} {
		added, err := trusting.Add(ctx, topic, dq.Job{ID: "1", Body: 1, Delay: time.Hour})
		check(t, err)
		same(t, added.Outcome, outcome)
	}
}

func TestARetryAfterALostAnswerAddsNoSecondJob(t *testing.T) {
	client, topic := setUp(t)
	lossy := connect(t, dq.Config{URL: os.Getenv("DQ_LOSSY_URL")})
	job := dq.Job{Body: 1, Delay: time.Hour, Tags: []string{topic}}
	added, err := lossy.Add(ctx, topic, job)
	check(t, err)
	same(t, added.Outcome, "kept")
	results, err := lossy.AddMany(ctx, topic, []dq.Job{job, job, job})
	check(t, err)
	for _, result := range results {
		same(t, result.Outcome, "kept")
	}
	var found struct{ Jobs []dq.Shown }
	check(t, client.Do(ctx, "GET", "/v1/jobs?tag="+topic, "", nil, &found))
	same(t, len(found.Jobs), 4)
	// The first try has deleted the job. The second try does not know this, and finds no job.
	isDeleted, err := lossy.Delete(ctx, topic, added.ID)
	check(t, err)
	same(t, isDeleted, false)
	_, err = client.Get(ctx, topic, added.ID)
	same(t, dq.Code(err), "not_found")
}

func TestAnAddWaitsForARestartOfDq(t *testing.T) {
	client, topic := setUp(t)
	_, err := client.Add(ctx, topic, dq.Job{ID: "before", Body: 1, Delay: time.Hour})
	check(t, err)
	control(t, "/stop")
	_, err = connect(t, dq.Config{RetryFor: -1}).Add(ctx, topic, dq.Job{Body: 1})
	same(t, dq.Code(err), "no_answer")
	control(t, "/start?after_ms=500")
	added, err := connect(t, dq.Config{RetryFor: time.Minute}).Add(ctx, topic, dq.Job{Body: 1, Delay: time.Hour})
	check(t, err)
	same(t, added.Outcome, "new")
	shown, err := client.Get(ctx, topic, "before")
	check(t, err)
	same(t, shown.State, "delayed")
}

func verify(t *testing.T, callback callback, secrets ...string) (string, error) {
	t.Helper()
	webhook, err := dq.NewWebhook(secrets...)
	check(t, err)
	return webhook.Verify(callback.header, callback.body)
}

func TestACallbackAfterADelayHasAValidSignature(t *testing.T) {
	client, topic := setUp(t)
	url, callbacks := sink(t, 0)
	for _, secrets := range [][]string{{newSecret}, {newSecret, oldSecret}} {
		register(t, client, topic, settings{"callback": url, "secrets": secrets})
		added, err := client.Add(ctx, topic, dq.Job{Body: settings{"zh": "超时"}, Delay: time.Second})
		check(t, err)
		callback := receive(t, callbacks)
		same(t, time.Now().UnixMilli() >= added.DueMs, true)
		same(t, string(callback.body), `{"zh":"超时"}`)
		id, err := verify(t, callback, newSecret)
		check(t, err)
		same(t, id, callback.header.Get("webhook-id"))
		_, err = verify(t, callback, "another-secret", newSecret)
		check(t, err)
		if len(secrets) == 2 {
			_, err = verify(t, callback, oldSecret)
			check(t, err)
		}
		_, err = verify(t, callback, "another-secret")
		same(t, err, dq.ErrInvalidSignature)
		callback.body = append(callback.body, ' ')
		_, err = verify(t, callback, newSecret, oldSecret)
		same(t, err, dq.ErrInvalidSignature)
	}
}

func TestAFailedCallbackComesAgainWithTheSameWebhookID(t *testing.T) {
	client, topic := setUp(t)
	url, callbacks := sink(t, 1)
	register(t, client, topic, settings{"callback": url, "secrets": []string{newSecret}, "retry": []string{"1ms"}})
	_, err := client.Add(ctx, topic, dq.Job{Body: 1})
	check(t, err)
	first, err := verify(t, receive(t, callbacks), newSecret)
	check(t, err)
	second, err := verify(t, receive(t, callbacks), newSecret)
	check(t, err)
	same(t, first, second)
}

func TestTheTableOfSignatures(t *testing.T) {
	text, err := os.ReadFile("../signatures.json")
	check(t, err)
	var cases []struct {
		Name, Body string
		Valid      bool
		Secrets    []string
		Headers    map[string]string
		Now        int64
	}
	check(t, json.Unmarshal(text, &cases))
	same(t, len(cases) > 30, true)
	for _, one := range cases {
		header := http.Header{}
		for name, value := range one.Headers {
			header.Set(name, value)
		}
		webhook, err := dq.NewWebhook(one.Secrets...)
		check(t, err)
		_, err = webhook.VerifyAt(header, []byte(one.Body), time.Unix(one.Now, 0))
		if (err == nil) != one.Valid {
			t.Errorf("%s: %v", one.Name, err)
		}
	}
}

func TestASecretThatDqRefusesIsRefused(t *testing.T) {
	text, err := os.ReadFile("../secrets.json")
	check(t, err)
	var cases []struct {
		Secrets []string
		Error   string
	}
	check(t, json.Unmarshal(text, &cases))
	for _, one := range cases {
		message := ""
		if _, err := dq.NewWebhook(one.Secrets...); err != nil {
			message = strings.TrimPrefix(err.Error(), "dq: ")
		}
		same(t, message, one.Error)
	}
	output, err := exec.Command("go", "run", "./examples/hook", "127.0.0.1:0").CombinedOutput()
	same(t, err != nil && strings.Contains(string(output), "DQ_WEBHOOK_SECRETS is not set"), true)
}

func TestAJobThatWasRemovedAtItsReserveNeedsNoReport(t *testing.T) {
	client, topic := setUp(t)
	topic = register(t, client, topic+".pull", settings{"mode": "pull", "on_reserve": "remove"})
	_, err := client.Add(ctx, topic, dq.Job{ID: "1", Body: 7})
	check(t, err)
	jobs, err := client.Reserve(ctx, dq.Reserve{Topics: []string{topic}, Wait: 10 * time.Second})
	check(t, err)
	same(t, jobs[0].Token, "")
	check(t, client.Nack(ctx, jobs[0], "too late"))
	check(t, client.Ack(ctx, jobs[0], ""))
}

func TestAJobIsReservedAndReported(t *testing.T) {
	client, topic := setUp(t)
	topic = register(t, client, topic+".pull", settings{"mode": "pull"})
	jobs, err := client.Reserve(ctx, dq.Reserve{Topics: []string{topic}})
	check(t, err)
	same(t, len(jobs), 0)
	wanted := dq.Job{ID: "1", Body: 7, Delay: time.Hour, Headers: map[string]string{"x-shop": "7"}, Tags: []string{"t"}}
	_, err = client.Add(ctx, topic, wanted)
	check(t, err)
	check(t, client.Run(ctx, topic, "1"))
	reserve := dq.Reserve{Topics: []string{topic}, Max: 2, Wait: 10 * time.Second, Lease: time.Minute}
	jobs, err = client.Reserve(ctx, reserve)
	check(t, err)
	same(t, len(jobs), 1)
	job := jobs[0]
	same(t, fmt.Sprint(job.ID, string(job.Body), job.Headers, job.Tags, job.Attempt), fmt.Sprint("1", "7", wanted.Headers, wanted.Tags, 1))
	until, err := client.Extend(ctx, job, 5*time.Minute)
	check(t, err)
	same(t, until.UnixMilli() > job.LeaseUntilMs, true)
	check(t, client.NackAfter(ctx, job, "not yet", 0))
	jobs, err = client.Reserve(ctx, reserve)
	check(t, err)
	same(t, jobs[0].Attempt, 2)
	check(t, client.Ack(ctx, jobs[0], "done"))
	check(t, client.Ack(ctx, jobs[0], "done")) // a repeat gets the same answer
	same(t, dq.Code(client.Nack(ctx, jobs[0], "")), "gone")
}

func TestAWorkerSurvivesErrorsAndAnOutage(t *testing.T) {
	client, topic := setUp(t)
	topic = register(t, client, topic+".pull", settings{"mode": "pull", "retry": []string{"1ms"}})
	seen, outage := make(chan string, 16), make(chan bool, 16)
	var mutex sync.Mutex
	var logged []string
	// The worker tries again to extend the lease.
	proxy := newScript(t, settings{"path": "/extend$", "status": 500, "body": "<h1>Error</h1>"})
	worker := dq.Worker{
		Client: connect(t, dq.Config{URL: proxy.url, RetryFor: 200 * time.Millisecond}),
		Topics: []string{topic}, Lease: time.Second,
		Handler: func(_ context.Context, job dq.Reserved) (string, error) {
			seen <- fmt.Sprintf("%s %d", job.Body, job.Attempt)
			if string(job.Body) == `"once more"` && job.Attempt == 1 {
				return "", errors.New("not now")
			}
			if string(job.Body) == `"long"` {
				time.Sleep(2 * time.Second) // longer than its lease, which is extended
			}
			return "worked", nil
		},
		Log: func(format string, values ...any) {
			mutex.Lock()
			defer mutex.Unlock()
			logged = append(logged, fmt.Sprintf(format, values...))
			if strings.HasPrefix(format, "no jobs are reserved") {
				outage <- true
			}
		},
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	add := func(id, body string) {
		t.Helper()
		_, err := client.Add(ctx, topic, dq.Job{ID: id, Body: body})
		check(t, err)
	}
	add("", "once more")
	same(t, receive(t, seen), `"once more" 1`)
	same(t, receive(t, seen), `"once more" 2`)
	add("long", "long")
	same(t, receive(t, seen), `"long" 1`)
	eventually(t, func() bool {
		_, err := client.Get(ctx, topic, "long")
		return dq.Code(err) == "not_found"
	})
	control(t, "/stop")
	receive(t, outage)
	control(t, "/start")
	add("", "last")
	same(t, receive(t, seen), `"last" 1`)
	stop()
	check(t, receive(t, ended))
	same(t, len(seen), 0)
	mutex.Lock()
	defer mutex.Unlock()
	same(t, strings.Contains(strings.Join(logged, "\n"), "failed: not now"), true)

	worker.Topics = []string{"no-such-topic"}
	same(t, dq.Code(worker.Run(ctx)), "unknown_topic")
}

// script is a proxy before dq that answers the first requests as the rules say: scripted() of clients/run.
type script struct{ place, url string }

func newScript(t *testing.T, rules ...settings) script {
	t.Helper()
	text, err := json.Marshal(rules)
	check(t, err)
	name := fmt.Sprint(time.Now().UnixNano())
	s := script{os.Getenv("DQ_SCRIPTED_URL") + "/scripts/" + name, os.Getenv("DQ_SCRIPTED_URL") + "/" + name}
	response, err := http.Post(s.place, "application/json", bytes.NewReader(text))
	check(t, err)
	response.Body.Close()
	same(t, response.StatusCode, 204)
	return s
}

// keys returns the keys of the requests to paths with this end.
func (s script) keys(t *testing.T, end string) []string {
	t.Helper()
	response, err := http.Get(s.place)
	check(t, err)
	defer response.Body.Close()
	var requests []struct{ Path, Key string }
	check(t, json.NewDecoder(response.Body).Decode(&requests))
	keys := []string{}
	for _, request := range requests {
		if strings.HasSuffix(request.Path, end) {
			keys = append(keys, request.Key)
		}
	}
	return keys
}

// client makes one try.
func (s script) client(t *testing.T) *dq.Client {
	t.Helper()
	return connect(t, dq.Config{URL: s.url, RetryFor: -1})
}

// reserved returns a rule that answers a reserve with a job.
func reserved(id string) settings {
	return settings{"path": "/reserve$", "status": 200, "body": settings{"jobs": []settings{{
		"topic": "t", "id": id, "body": id, "headers": settings{}, "tags": []string{}, "attempt": 1, "token": "AQ",
		"due_ms": 1, "added_ms": 1, "lease_until_ms": time.Now().Add(time.Minute).UnixMilli(),
	}}}}
}

// A worker whose jobs are all done gets noJobs.
var (
	noJobs = settings{"path": "/reserve$", "times": 1000, "status": 200, "body": settings{"jobs": []settings{}}}
	done   = settings{"path": "/ack$", "status": 200, "body": settings{"outcome": "done"}}
)

func problem(path string, times, status int, code string) settings {
	body := settings{"status": status, "code": code, "detail": "as the test says"}
	return settings{"path": path, "times": times, "status": status, "body": body}
}

// whileWorking runs a worker until the condition holds, and returns the lines of its log.
func whileWorking(t *testing.T, worker dq.Worker, condition func(logged []string) bool) []string {
	t.Helper()
	var mutex sync.Mutex
	var logged []string
	worker.Wait = 200 * time.Millisecond
	worker.Log = func(format string, values ...any) {
		mutex.Lock()
		defer mutex.Unlock()
		logged = append(logged, fmt.Sprintf(format, values...))
	}
	lines := func() []string {
		mutex.Lock()
		defer mutex.Unlock()
		return append([]string{}, logged...)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(running) }()
	eventually(t, func() bool { return len(ended) > 0 || condition(lines()) })
	stop()
	check(t, receive(t, ended))
	return lines()
}

func count(lines []string, text string) int {
	return strings.Count(strings.Join(lines, "\n"), text)
}

func TestAWorkerGoesOnAfterRefusalsThatPass(t *testing.T) {
	client, topic := setUp(t)
	proxy := newScript(t,
		settings{"path": "/reserve$", "status": 403, "body": "<h1>Forbidden</h1>"},
		problem("/reserve$", 1, 429, "too_many_failures"),
		settings{"path": "/reserve$", "status": 200, "body": settings{"jobs": 7}},
		settings{"path": "/reserve$", "status": 200, "body": settings{"it": "works"}},
		reserved("2"), done, noJobs,
	)
	var worked []string
	worker := dq.Worker{
		Client: proxy.client(t), Topics: []string{"t"},
		Handler: func(_ context.Context, job dq.Reserved) (string, error) {
			worked = append(worked, job.ID)
			return "", nil
		},
	}
	logged := whileWorking(t, worker, func([]string) bool { return len(proxy.keys(t, "/ack")) > 0 })
	same(t, worked, []string{"2"})
	same(t, count(logged, "no jobs are reserved"), 4)

	// Somebody may change the mode of the topic back. A stop ends this pause, which is longer.
	worker.Client, worker.Topics = client, []string{topic}
	whileWorking(t, worker, func(logged []string) bool { return count(logged, "not_pull") > 0 })
	worker.Client = connect(t, dq.Config{Token: "dq_wrong"})
	same(t, dq.Code(worker.Run(ctx)), "unauthorized")
}

func TestAWorkerReportsUntilTheLeaseEnds(t *testing.T) {
	cut := func(times int) settings { return settings{"path": "/ack$", "times": times, "status": 0} }
	handler := func(context.Context, dq.Reserved) (string, error) { return "done", nil }
	worker := func(proxy script, lease time.Duration) dq.Worker {
		return dq.Worker{Client: proxy.client(t), Topics: []string{"t"}, Handler: handler, Lease: lease}
	}
	// An error that passes does not end the reports.
	failure := settings{"path": "/ack$", "status": 500, "body": "<h1>Error</h1>"}
	proxy := newScript(t, reserved("1"), cut(1), failure, done, noJobs)
	logged := whileWorking(t, worker(proxy, 0), func([]string) bool { return len(proxy.keys(t, "/ack")) == 3 })
	same(t, count(logged, "was not reported"), 0)

	// While jobs are moved between nodes, no lease ends. Afterwards it does.
	moving := problem("/ack$", 2, 503, "nodes_moving")
	proxy = newScript(t, reserved("1"), moving, done, reserved("2"), cut(1000), noJobs)
	logged = whileWorking(t, worker(proxy, time.Second), func(logged []string) bool {
		return count(logged, "job 2 of t was not reported") > 0
	})
	same(t, len(proxy.keys(t, "/1/ack")), 3)
	same(t, count(logged, "job 1 of t was not reported"), 0)

	// A stop ends the repeats.
	proxy = newScript(t, reserved("1"), cut(1000), noJobs)
	whileWorking(t, worker(proxy, 0), func([]string) bool { return len(proxy.keys(t, "/ack")) > 0 })
}

func TestTheContextEndsWithTheLease(t *testing.T) {
	nack := settings{"path": "/nack$", "status": 200, "body": settings{"outcome": "retried"}}
	proxy := newScript(t,
		reserved("1"), settings{"path": "/1/extend$", "times": 1000, "status": 0}, nack,
		reserved("2"), problem("/2/extend$", 1000, 503, "nodes_moving"), done, noJobs,
	)
	took := map[string]time.Duration{}
	whileWorking(t, dq.Worker{
		Client: proxy.client(t), Topics: []string{"t"}, Lease: time.Second,
		Handler: func(ctx context.Context, job dq.Reserved) (string, error) {
			started := time.Now()
			select {
			case <-ctx.Done():
			case <-time.After(2500 * time.Millisecond):
			}
			took[job.ID] = time.Since(started)
			return "", ctx.Err()
		},
	}, func([]string) bool { return len(proxy.keys(t, "/2/ack")) > 0 })
	// dq cannot be reached, so the lease ends after a second. While jobs are moved, it does not end.
	same(t, took["1"] > 900*time.Millisecond && took["1"] < 2*time.Second, true)
	same(t, took["2"] >= 2500*time.Millisecond, true)
}

type silentError struct{ text string }

func (e *silentError) Error() string { return e.text }

func TestNoAnswerOfAHandlerPreventsItsReport(t *testing.T) {
	client, topic := setUp(t)
	topic = register(t, client, topic+".pull", settings{"mode": "pull", "max_attempts": 1})
	for _, id := range []string{"huge", "panic", "nil"} {
		_, err := client.Add(ctx, topic, dq.Job{ID: id, Body: 1})
		check(t, err)
	}
	isDead := func(id string) bool {
		shown, _ := client.Get(ctx, topic, id)
		return shown.State == "dead"
	}
	logged := whileWorking(t, dq.Worker{
		Client: client, Topics: []string{topic},
		Handler: func(_ context.Context, job dq.Reserved) (string, error) {
			switch job.ID {
			case "huge":
				return strings.Repeat("\xff超", 1_000_000), nil
			case "panic":
				panic("as the test says")
			}
			var none *silentError
			return "", none
		},
	}, func([]string) bool {
		_, err := client.Get(ctx, topic, "huge")
		return dq.Code(err) == "not_found" && isDead("panic") && isDead("nil")
	})
	same(t, count(logged, "panic: as the test says") > 0 && count(logged, "client_test.go") > 0, true)
}

func TestAPostHasAKeyAndOneTryIsOneTry(t *testing.T) {
	_, topic := setUp(t)
	lossy := connect(t, dq.Config{URL: os.Getenv("DQ_LOSSY_URL")})
	var added dq.Added
	job := settings{"id": "1", "body": 1, "delay": "1h"}
	check(t, lossy.Do(ctx, "POST", "/v1/topics/"+topic+"/jobs", "", job, &added))
	same(t, added.Outcome, "replaced")

	// A kept connection that breaks does not count as a try, unless there is only one.
	for retryFor, tries := range map[time.Duration]int{10 * time.Second: 2, -1: 1} {
		proxy := newScript(t, settings{"path": "/run$", "status": 0})
		client := connect(t, dq.Config{URL: proxy.url, RetryFor: retryFor})
		_, err := client.Get(ctx, topic, "1")
		check(t, err)
		err = client.Do(ctx, "POST", "/v1/topics/"+topic+"/jobs/1/run", "", nil, nil)
		same(t, dq.Code(err) == "no_answer", tries == 1)
		keys := proxy.keys(t, "/run")
		same(t, len(keys), tries)
		same(t, keys[0] != "" && keys[0] == keys[tries-1], true)
	}
}

type wrapped struct{ http.RoundTripper }

func TestAProgramMayReplaceTheDefaultTransport(t *testing.T) {
	before := http.DefaultTransport
	defer func() { http.DefaultTransport = before }()
	http.DefaultTransport = wrapped{before}
	_, err := connect(t, dq.Config{}).Get(ctx, "no-such-topic", "1")
	same(t, dq.Code(err), "not_found")
}

// example builds and starts a program of the examples, and returns its process and its lines.
func example(t *testing.T, name string, arguments []string, environment ...string) (*exec.Cmd, <-chan string) {
	t.Helper()
	program := t.TempDir() + "/" + name
	output, err := exec.Command("go", "build", "-o", program, "./examples/"+name).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	command := exec.Command(program, arguments...)
	command.Env = append(os.Environ(), environment...)
	pipe, err := command.StdoutPipe()
	check(t, err)
	check(t, command.Start())
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	lines := make(chan string, 64)
	go func() {
		for scanner := bufio.NewScanner(pipe); scanner.Scan(); {
			lines <- scanner.Text()
		}
	}()
	return command, lines
}

func TestTheExamplesWork(t *testing.T) {
	client, _ := setUp(t)
	register(t, client, "orders", settings{"callback": "http://127.0.0.1:9/hook"})
	_, lines := example(t, "add", nil)
	same(t, receive(t, lines), "delayed ")
	same(t, strings.HasSuffix(receive(t, lines), " <nil>") && strings.HasSuffix(receive(t, lines), " <nil>"), true)
	same(t, receive(t, lines), "unknown_topic")

	register(t, client, "shipping", settings{"mode": "pull"})
	_, err := client.Add(ctx, "shipping", dq.Job{ID: "7", Body: settings{"order": 7}})
	check(t, err)
	worker, lines := example(t, "worker", nil)
	same(t, receive(t, lines), `shipping 7 {"order":7}`)
	check(t, worker.Process.Signal(syscall.SIGTERM))
	check(t, worker.Wait())
	_, err = client.Get(ctx, "shipping", "7")
	same(t, dq.Code(err), "not_found")
}

func TestTheReceiverOfTheExampleRefusesWhatIsNotSigned(t *testing.T) {
	client, topic := setUp(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	address := listener.Addr().String()
	check(t, listener.Close())
	_, lines := example(t, "hook", []string{address}, "DQ_WEBHOOK_SECRETS="+newSecret+","+oldSecret)
	eventually(t, func() bool {
		connection, err := net.Dial("tcp", address)
		if err == nil {
			connection.Close()
		}
		return err == nil
	})
	url := "http://" + address + "/hook"
	wanted := settings{"callback": url, "secrets": []string{oldSecret}, "retry": []string{"1h"}}
	register(t, client, topic, wanted)
	_, err = client.Add(ctx, topic, dq.Job{ID: "42", Body: settings{"order": 42}})
	check(t, err)
	same(t, receive(t, lines), `job 42 {"order":42}`)
	wanted["secrets"] = []string{"another-secret"}
	register(t, client, topic, wanted)
	_, err = client.Add(ctx, topic, dq.Job{ID: "43", Body: 1})
	check(t, err)
	eventually(t, func() bool {
		shown, err := client.Get(ctx, topic, "43")
		return err == nil && len(shown.Log) == 1 && shown.Log[0].Status == 401
	})
	response, err := http.Post(url, "", bytes.NewReader(make([]byte, 2<<20)))
	check(t, err)
	response.Body.Close()
	same(t, response.StatusCode, 400)
}
