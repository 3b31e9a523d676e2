package dq

import (
	"context"
	"log"
	"sync"
	"time"
)

// Worker works on the jobs of pull topics (docs/PULL.md).
type Worker struct {
	Client *Client
	Topics []string
	// Handler does the work. If it returns no error, the job is done, and the text is kept in its record. Otherwise the
	// job is tried again, or becomes a dead letter. A job may come twice, if this process or dq fails before the report,
	// or if the lease ends. At the end of the lease, the context is cancelled.
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
// not help, for example because a topic is not a pull topic.
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
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case !isTransient(err):
			return err
		default:
			w.Log("no jobs are reserved: %v", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
		for _, job := range jobs {
			w.workOn(job)
		}
	}
	return nil
}

// workOn works on one job. If the worker is told to stop, it still finishes this job.
func (w Worker) workOn(job Reserved) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		w.extend(ctx, cancel, job, done)
	}()
	answer, err := w.Handler(ctx, job)
	close(done)
	<-extended
	if err != nil {
		w.Log("job %s of %s failed: %v", job.ID, job.Topic, err)
		reason := []rune(err.Error())
		if len(reason) > 200 {
			reason = reason[:200]
		}
		err = w.Client.Nack(context.Background(), job, string(reason))
	} else {
		err = w.Client.Ack(context.Background(), job, answer)
	}
	if err != nil {
		// The lease ends by itself, and the job comes again.
		w.Log("the outcome of job %s of %s was not reported: %v", job.ID, job.Topic, err)
	}
}

// extend extends the lease each time that a third of it has passed. It cancels the work if the lease has ended.
func (w Worker) extend(ctx context.Context, cancel func(), job Reserved, done <-chan struct{}) {
	ticker := time.NewTicker(w.Lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		if _, err := w.Client.Extend(ctx, job, w.Lease); err != nil {
			w.Log("the lease of job %s of %s was not extended: %v", job.ID, job.Topic, err)
			if !isTransient(err) {
				cancel()
				return
			}
		}
	}
}
