// A receiver of callbacks. Its argument is the address to listen on.
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"sync"

	"dq"
)

// docs: receive
func hook(webhook *dq.Webhook) http.HandlerFunc {
	var seen sync.Map // in real life: a unique key in the database, written together with the effects of the job
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		id, err := webhook.Verify(r.Header, body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		if _, isRepeat := seen.LoadOrStore(id, true); !isRepeat {
			fmt.Printf("job %s %s\n", r.Header.Get("dq-job-id"), body)
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func main() {
	// DQ_WEBHOOK_SECRETS has the secret; during a rotation, it has the new secret, a comma and the old secret.
	secrets := os.Getenv("DQ_WEBHOOK_SECRETS")
	if secrets == "" {
		log.Fatal("DQ_WEBHOOK_SECRETS is not set")
	}
	webhook, err := dq.NewWebhook(strings.Split(secrets, ",")...)
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/hook", hook(webhook))
	log.Fatal(http.ListenAndServe(os.Args[1], nil)) // such as 127.0.0.1:9000
}

// docs: end of receive
