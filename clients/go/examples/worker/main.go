// A worker for the pull topic shipping. SIGTERM ends it after the job in hand.
package main

import (
	"context"
	"fmt"
	"log"
	"os/signal"
	"syscall"

	"dq"
)

// docs: work
func ship(ctx context.Context, job dq.Reserved) (string, error) {
	fmt.Printf("shipping %s %s\n", job.ID, job.Body)
	return "shipped", nil // kept in the job's record; an error means: try again later
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	client, err := dq.New(dq.Config{})
	if err != nil {
		log.Fatal(err)
	}
	worker := dq.Worker{Client: client, Topics: []string{"shipping"}, Handler: ship, Parallel: 4}
	if err := worker.Run(ctx); err != nil {
		log.Fatal(err)
	}
}

// docs: end of work
