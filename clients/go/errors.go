package dq

import (
	"errors"
	"fmt"
	"net/http"
)

// Error says why a request was refused, or that no answer came.
type Error struct {
	// Code is a code of docs/HTTP.md ("Errors"), or one of the client's own codes. "no_answer": there was no complete
	// answer after all tries, so the change may or may not have happened. "bad_answer": the server that answered is not
	// dq, or the answer cannot be read. "untrusted": the certificate of the server is not trusted.
	Code   string `json:"code"`
	Detail string `json:"detail"`
	// Status is the HTTP status, 0 without an answer.
	Status int `json:"status"`
	// Field is the field that is wrong, if there is one.
	Field string `json:"field"`
	cause error
}

func (e *Error) Error() string { return fmt.Sprintf("dq: %s: %s", e.Code, e.Detail) }

func (e *Error) Unwrap() error { return e.cause }

// IsTransient says whether the same request may succeed later.
func (e *Error) IsTransient() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return e.Code == "no_answer" || e.Code == "in_progress"
}

// Code returns the code of an error of dq, or "" for any other error and for nil.
func Code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func isTransient(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.IsTransient()
}
