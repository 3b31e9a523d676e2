// Adds jobs, and shows and removes them. DQ_URL and DQ_TOKEN say where dq is.
package main

import (
	"context"
	"fmt"
	"log"
	"time"

	"dq"
)

func main() {
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// docs: add
func run(ctx context.Context) error {
	client, err := dq.New(dq.Config{}) // DQ_URL, or http://127.0.0.1:8088
	if err != nil {
		return err
	}
	job := dq.Job{ID: "order-42", Body: map[string]int{"order": 42}, Delay: 30 * time.Minute, Tags: []string{"shop:7"}}
	if _, err := client.Add(ctx, "orders", job); err != nil {
		return err
	}
	shown, err := client.Get(ctx, "orders", "order-42")
	fmt.Println(shown.State, dq.Code(err)) // "not_found" if there is no such job
	if _, err := client.Delete(ctx, "orders", "order-42"); err != nil {
		return err
	}

	results, err := client.AddMany(ctx, "orders", []dq.Job{{Body: 1, Delay: time.Hour}, {Body: 2, RunAt: time.Now()}})
	if err != nil {
		return err
	}
	for _, result := range results {
		fmt.Println(result.ID, result.Err)
	}

	_, err = client.Add(ctx, "no-such-topic", dq.Job{Body: 1})
	fmt.Println(dq.Code(err)) // unknown_topic
	return nil
}

// docs: end of add
