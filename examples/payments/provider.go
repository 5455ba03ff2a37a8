package payments

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/onceward/onceward/consumer"
)

// Provider is a payment provider that does not exist, with an API as many have one:
// POST /charges with the header Idempotency-Key, GET /charges?key=.
type Provider struct {
	URL    string
	Client *http.Client
}

// Charge is its answer, which the fence keeps.
type Charge struct {
	ID string `json:"id"`
}

// Charge takes the money, once for each key.
func (p Provider) Charge(ctx context.Context, key string, o Order) (Charge, error) {
	body, err := json.Marshal(o)
	if err != nil {
		return Charge{}, fmt.Errorf("encode order: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, p.URL+"/charges", bytes.NewReader(body))
	if err != nil {
		return Charge{}, fmt.Errorf("charge: %w", err)
	}
	req.Header.Set("Idempotency-Key", key)
	made, status, err := p.ask(req)
	switch {
	case err != nil:
		return Charge{}, err
	case status == http.StatusPaymentRequired:
		return Charge{}, consumer.DeadLetter(errors.New("charge: the card was declined")) // for a person to look at
	case status >= http.StatusBadRequest:
		return Charge{}, fmt.Errorf("charge: the provider answered %d", status) // tried again, with the same key
	}
	return made, nil
}

// Find asks whether there is a charge of that key.
func (p Provider) Find(ctx context.Context, key string) (Charge, bool, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.URL+"/charges?key="+url.QueryEscape(key), http.NoBody)
	if err != nil {
		return Charge{}, false, fmt.Errorf("find charge: %w", err)
	}
	made, status, err := p.ask(req)
	if err == nil && status >= http.StatusBadRequest && status != http.StatusNotFound {
		err = fmt.Errorf("find charge: the provider answered %d", status)
	}
	return made, err == nil && status != http.StatusNotFound, err
}

// ask sends a request. The charge is set where there is one.
func (p Provider) ask(req *http.Request) (made Charge, status int, err error) {
	resp, err := p.Client.Do(req) //nolint:gosec // G704: the address is of this program's configuration
	if err != nil {
		return made, 0, fmt.Errorf("ask the provider: %w", err)
	}
	defer resp.Body.Close() //nolint:errcheck // it was only read
	if resp.StatusCode < http.StatusBadRequest {
		if err := json.NewDecoder(resp.Body).Decode(&made); err != nil {
			return made, 0, fmt.Errorf("read the provider's answer: %w", err)
		}
	}
	return made, resp.StatusCode, nil
}
