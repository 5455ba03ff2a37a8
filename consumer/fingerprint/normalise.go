package fingerprint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Form is a Unicode form into which names and strings are brought.
type Form string

// Unicode forms.
const (
	// AsWritten leaves them alone: é as one character is not e with an accent. It is
	// the default.
	AsWritten Form = ""
	// NFC makes those two one, and nothing else.
	NFC Form = "NFC"
	// NFKC makes one of compatible characters, too: ﬁ and fi, ② and 2.
	NFKC Form = "NFKC"
)

func (f Form) of(s string) string {
	switch f {
	case NFC:
		return norm.NFC.String(s)
	case NFKC:
		return norm.NFKC.String(s)
	case AsWritten:
	}
	return s
}

// normal is the one text of everything that counts as the same value. It is pure.
//
// Objects have their names sorted, and there is no white space between values; strings
// have none at their ends; a number is its decimal, of any length: 1, 1.0 and 10e-1 are
// one, and nothing is rounded. Two values that differ otherwise have different texts.
// What readers of JSON understand in several ways has none, and is an error of parse: an
// object with one name twice, bytes that are not UTF-8, half of a surrogate pair.
func normal(value any) ([]byte, error) {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(value); err != nil { // sorts names
		return nil, err
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// escapes are those in a text of JSON; half is set by half of a surrogate pair.
var (
	escapes = regexp.MustCompile(`\\(?:u[dD][89abAB]..\\u[dD][c-fC-F]..|(?P<half>u[dD][89a-fA-F]..)|.)`)
	half    = escapes.SubexpIndex("half")
)

// parse reads one value of JSON, with its strings and numbers in their one form.
func parse(message []byte, form Form) (any, error) {
	if !utf8.Valid(message) {
		return nil, errors.New("it is not UTF-8")
	}
	if !json.Valid(message) {
		return nil, errors.New("it is not one value of JSON")
	}
	for _, escape := range escapes.FindAllSubmatch(message, -1) {
		if escape[half] != nil {
			return nil, fmt.Errorf("it holds %s, half of a character", escape[0])
		}
	}
	d := json.NewDecoder(bytes.NewReader(message))
	d.UseNumber()
	return next(d, form)
}

// next reads the next value.
func next(d *json.Decoder, form Form) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := token.(type) {
	case json.Number:
		return number(t.String())
	case string:
		return strings.TrimSpace(form.of(t)), nil
	case json.Delim:
		if t == '[' {
			return list(d, form)
		}
		return object(d, form)
	}
	return token, nil // true, false, null
}

func list(d *json.Decoder, form Form) (any, error) {
	values := []any{}
	for d.More() {
		value, err := next(d, form)
		if err != nil {
			return nil, err
		}
		values = append(values, value)
	}
	_, err := d.Token()
	return values, err
}

func object(d *json.Decoder, form Form) (any, error) {
	members := make(map[string]any)
	for d.More() {
		token, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := token.(string)
		name = form.of(name)
		if _, there := members[name]; there {
			return nil, fmt.Errorf("an object has the name %.120q twice", name)
		}
		if members[name], err = next(d, form); err != nil {
			return nil, err
		}
	}
	_, err := d.Token()
	return members, err
}

// How many digits before and zeros behind the point a number has at most that is
// written without an exponent.
const (
	mostWhole = 21
	mostZeros = 6
)

// number is a number of JSON in its one form. It is pure.
func number(text string) (json.Number, error) {
	unsigned, negative := strings.CutPrefix(strings.ToLower(text), "-")
	mantissa, exponent, _ := strings.Cut(unsigned, "e")
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := strings.TrimLeft(whole+fraction, "0")
	digits := strings.TrimRight(all, "0")
	if digits == "" {
		return "0", nil
	}
	shift := int64(0)
	if exponent != "" {
		var err error
		if shift, err = strconv.ParseInt(exponent, 10, 64); err != nil {
			return "", fmt.Errorf("the number %.120s is too large or too small", text)
		}
	}
	shift += int64(len(all) - len(digits) - len(fraction)) // the number is digits × 10^shift
	if shift > math.MaxInt32 || shift < math.MinInt32 {
		return "", fmt.Errorf("the number %.120s is too large or too small", text)
	}
	switch point := len(digits) + int(shift); {
	case shift >= 0 && point <= mostWhole:
		digits += strings.Repeat("0", int(shift))
	case shift < 0 && point > 0:
		digits = digits[:point] + "." + digits[point:]
	case shift < 0 && point > -mostZeros:
		digits = "0." + strings.Repeat("0", -point) + digits
	default:
		digits += "e" + strconv.FormatInt(shift, 10)
	}
	if negative {
		digits = "-" + digits
	}
	return json.Number(digits), nil
}
