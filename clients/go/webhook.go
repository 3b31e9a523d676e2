package dq

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Why a request is not a callback of dq. Answer such a request with 401.
var (
	ErrNotSigned        = errors.New("dq: the request is not signed")
	ErrTimestamp        = errors.New("dq: webhook-timestamp is no time that is close to the clock of this host")
	ErrInvalidSignature = errors.New("dq: no signature is valid")
)

var timestampForm = regexp.MustCompile(`^[0-9]{1,15}$`)

// Webhook verifies callbacks with the secrets of a topic: signatures of Standard Webhooks (docs/CALLBACKS.md,
// "Signatures").
type Webhook struct {
	keys [][]byte
	// Tolerance is how far webhook-timestamp may be from the clock of this host. Default: 5 minutes.
	Tolerance time.Duration
}

// NewWebhook takes the secrets. A secret that dq itself would refuse is an error. While a secret is rotated, give the
// new one and the old one: a signature of either is enough.
func NewWebhook(secrets ...string) (*Webhook, error) {
	if len(secrets) == 0 {
		return nil, errors.New("dq: a webhook needs a secret")
	}
	w := &Webhook{Tolerance: 5 * time.Minute}
	for i, secret := range secrets {
		key, err := keyOf(secret)
		if err != nil {
			return nil, fmt.Errorf("dq: secret %d %w", i+1, err)
		}
		w.keys = append(w.keys, key)
	}
	return w, nil
}

// keyOf returns the key of a secret. An error does not show the secret.
func keyOf(secret string) ([]byte, error) {
	if strings.HasPrefix(secret, "whsk_") || strings.HasPrefix(secret, "whpk_") {
		return nil, errors.New("is a key of an asymmetric signature, which dq does not use")
	}
	if !strings.HasPrefix(secret, "whsec_") {
		if len(secret) < 8 {
			return nil, fmt.Errorf("has %d bytes, and needs at least 8", len(secret))
		}
		return []byte(secret), nil
	}
	encoded := strings.TrimRight(strings.TrimPrefix(secret, "whsec_"), "=")
	key, err := base64.RawStdEncoding.DecodeString(encoded)
	// The decoder passes over line ends.
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return nil, errors.New("has no base64 after whsec_")
	}
	if len(key) < 24 || len(key) > 64 {
		return nil, fmt.Errorf("has %d bytes after whsec_, and needs 24 to 64", len(key))
	}
	return key, nil
}

// Verify returns the webhook-id. A repeat has the same webhook-id. The body must have all bytes of the request
// unchanged. It is empty if the method of the topic is GET.
func (w *Webhook) Verify(header http.Header, body []byte) (string, error) {
	return w.VerifyAt(header, body, time.Now())
}

// VerifyAt does the same as Verify, with a given time as the present.
func (w *Webhook) VerifyAt(header http.Header, body []byte, now time.Time) (string, error) {
	id, timestamp := header.Get("webhook-id"), header.Get("webhook-timestamp")
	signatures := header.Get("webhook-signature")
	if id == "" || signatures == "" {
		return "", ErrNotSigned
	}
	if !timestampForm.MatchString(timestamp) {
		return "", ErrTimestamp
	}
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return "", ErrTimestamp
	}
	if tolerance := int64(w.Tolerance / time.Second); now.Unix()-seconds > tolerance || seconds-now.Unix() > tolerance {
		return "", ErrTimestamp
	}
	isValid := false
	for _, key := range w.keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		wanted := []byte("v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)))
		for _, given := range strings.Split(signatures, " ") {
			isValid = hmac.Equal(wanted, []byte(given)) || isValid
		}
	}
	if !isValid {
		return "", ErrInvalidSignature
	}
	return id, nil
}
