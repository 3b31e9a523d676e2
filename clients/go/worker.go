package dq

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// How long the worker waits before it tries again, and how long if somebody must change the topic first.
	workerPause     = time.Second
	longWorkerPause = 10 * time.Second
	// How long after a move of jobs between nodes no lease ends (docs/PULL.md).
	moveGrace = 10 * time.Second
)

// Worker works on the jobs of pull topics (docs/PULL.md).
type Worker struct {
	Client *Client
	Topics []string
	// Handler does the work. If it returns no error, the job is done, and the text is kept in its record. Otherwise, also
	// if it panics, the job is tried again, or becomes a dead letter. A job may come twice, if this process or dq fails
	// before the report, or if the lease ends. At the end of the lease, the context is cancelled.
	Handler func(context.Context, Reserved) (string, error)
	// Parallel is how many jobs are worked on at a time. Default: 1.
	Parallel int
	// Wait is how long one reserve waits. Default: 30 s.
	Wait time.Duration
	// Lease is extended while the handler runs. Default: 1 minute.
	Lease time.Duration
	// Log gets what goes wrong beside the results of the handler. Default: log.Printf.
	Log func(format string, values ...any)
}

// Run works until the context ends. Then it finishes the jobs in hand, and returns. It returns an error if waiting does
// not help, for example if there is no such topic.
func (w Worker) Run(ctx context.Context) error {
	if w.Parallel == 0 {
		w.Parallel = 1
	}
	if w.Wait == 0 {
		w.Wait = 30 * time.Second
	}
	if w.Lease == 0 {
		w.Lease = time.Minute
	}
	if w.Log == nil {
		w.Log = log.Printf
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var group sync.WaitGroup
	failures := make(chan error, w.Parallel)
	for i := 0; i < w.Parallel; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			if err := w.loop(ctx); err != nil {
				failures <- err
				stop()
			}
		}()
	}
	group.Wait()
	close(failures)
	return <-failures
}

func (w Worker) loop(ctx context.Context) error {
	for ctx.Err() == nil {
		jobs, err := w.Client.Reserve(ctx, Reserve{Topics: w.Topics, Wait: w.Wait, Lease: w.Lease})
		if err != nil {
			pause := pauseAfter(err)
			switch {
			case ctx.Err() != nil:
				return nil
			case pause == 0:
				return err
			}
			w.Log("no jobs are reserved: %v", err)
			sleep(ctx, pause)
		}
		for _, job := range jobs {
			w.workOn(ctx, job, newLease(w.Lease))
		}
	}
	return nil
}

// pauseAfter returns how long to wait before the next reserve. 0: waiting does not help.
func pauseAfter(err error) time.Duration {
	switch {
	case Code(err) == "not_pull":
		return longWorkerPause // the topic is held, or somebody has changed its mode
	case isPassing(err):
		return workerPause
	}
	return 0
}

// isPassing says whether the same request may succeed later. Errors that a proxy before dq can cause are passing.
func isPassing(err error) bool {
	var e *Error
	return errors.As(err, &e) && (e.IsTransient() || e.Code == "bad_answer" ||
		e.Status == http.StatusTooManyRequests || e.Status >= http.StatusInternalServerError)
}

// sleep waits, but not longer than the context lasts.
func sleep(ctx context.Context, pause time.Duration) {
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
}

// lease is the lease of a job, as far as this process knows it.
type lease struct {
	length time.Duration
	end    time.Time
}

func newLease(length time.Duration) *lease {
	return &lease{length, time.Now().Add(length)}
}

func (l *lease) renew() { l.end = time.Now().Add(l.length) }

// canHold says whether a request about the job that failed with this error should be repeated.
func (l *lease) canHold(err error) bool {
	now := time.Now()
	if least := now.Add(moveGrace); Code(err) == "nodes_moving" && l.end.Before(least) {
		l.end = least
	}
	return isPassing(err) && now.Before(l.end)
}

// workOn works on one job. If the worker is told to stop, it still finishes this job.
func (w Worker) workOn(ctx context.Context, job Reserved, held *lease) {
	working, cancel := context.WithCancel(context.Background())
	extending, done := context.WithCancel(working)
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		w.extend(extending, cancel, job, held)
	}()
	answer, err := w.handle(working, job)
	done()
	<-extended
	cancel()
	report := func() error { return w.Client.Ack(context.Background(), job, answer) }
	if err != nil {
		w.Log("job %s of %s failed: %v", job.ID, job.Topic, err)
		reason := fmt.Sprint(err)
		report = func() error { return w.Client.Nack(context.Background(), job, reason) }
	}
	w.reportOutcome(ctx, job, held, report)
}

// handle calls the handler. A panic is an error of this job.
func (w Worker) handle(ctx context.Context, job Reserved) (answer string, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = fmt.Errorf("panic: %v", cause)
			w.Log("job %s of %s: the handler panics:\n%s", job.ID, job.Topic, debug.Stack())
		}
	}()
	return w.Handler(ctx, job)
}

// reportOutcome repeats a report while that may help, unless the worker is told to stop.
func (w Worker) reportOutcome(ctx context.Context, job Reserved, held *lease, report func() error) {
	for {
		err := report()
		if err == nil {
			return
		}
		if ctx.Err() != nil || !held.canHold(err) {
			// The lease ends by itself, and the job comes again.
			w.Log("the outcome of job %s of %s was not reported: %v", job.ID, job.Topic, err)
			return
		}
		w.Log("the outcome of job %s of %s is reported again: %v", job.ID, job.Topic, err)
		sleep(ctx, workerPause)
	}
}

// extend extends the lease each time that a third of it has passed, until the context ends. It cancels the work if the
// lease has ended, also if dq cannot be reached.
func (w Worker) extend(ctx context.Context, cancel func(), job Reserved, held *lease) {
	// A call without retries, because this loop repeats it. It must know in time whether jobs are still being moved.
	once := w.Client.withoutRetries()
	for pause := held.length / 3; ; {
		limited, release := context.WithDeadline(ctx, held.end)
		sleep(limited, pause)
		_, err := once.Extend(limited, job, held.length)
		release()
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			held.renew()
			pause = held.length / 3
		default:
			w.Log("the lease of job %s of %s was not extended: %v", job.ID, job.Topic, err)
			if !held.canHold(err) {
				cancel()
				return
			}
			if pause > moveGrace/4 {
				pause = moveGrace / 4
			}
		}
	}
}
