package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// stripeTolerance is how old, or how far ahead, the time in a signature of Stripe may be.
const stripeTolerance = 5 * time.Minute

// What is wrong with a signature. The sender is told, so that they hold nothing else.
var (
	errMissing = errors.New("the signature is missing")
	errWrong   = errors.New("the signature is wrong; look at the endpoint's secret")
	errOld     = errors.New("the signature is too old, or clocks differ")
)

// Verify says why a request is not one of a sender who has the secret; nil: it is. It
// compares in constant time. Of several secrets one has to do. Whoever posts is told the
// error's text: it must not hold what was expected.
type Verify func(h http.Header, body []byte, secret string, now time.Time) error

// SignedBody verifies an HMAC-SHA256 of the body in a header, behind a prefix that may be
// empty. Decode is [hex.DecodeString], or that of an encoding of base64.
func SignedBody(header, prefix string, decode func(string) ([]byte, error)) Verify {
	return func(h http.Header, body []byte, secret string, _ time.Time) error {
		given := h.Get(header)
		if given == "" {
			return errMissing
		}
		digest, prefixed := strings.CutPrefix(given, prefix)
		mac, err := decode(digest)
		if err != nil || !prefixed || !hmac.Equal(mac, sign(secret, body)) {
			return errWrong
		}
		return nil
	}
}

// verifyStripe verifies `t=TIME,v1=DIGEST`, of which there are several digests while a secret is rolled.
// Other schemes than v1 prove nothing.
func verifyStripe(h http.Header, body []byte, secret string, now time.Time) error {
	given := h.Get("Stripe-Signature")
	if given == "" {
		return errMissing
	}
	var stamp string
	var digests []string
	for part := range strings.SplitSeq(given, ",") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(part), "="); name {
		case "t":
			stamp = value
		case "v1":
			digests = append(digests, value)
		}
	}
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return errWrong
	}
	want := sign(secret, []byte(stamp+"."), body)
	for _, digest := range digests {
		if mac, err := hex.DecodeString(digest); err != nil || !hmac.Equal(mac, want) {
			continue
		}
		if now.Sub(time.Unix(seconds, 0)).Abs() > stripeTolerance {
			return errOld
		}
		return nil
	}
	return errWrong
}

func sign(secret string, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	for _, part := range parts {
		_, _ = mac.Write(part) // never fails
	}
	return mac.Sum(nil)
}
