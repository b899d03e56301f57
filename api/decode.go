package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"runledger/agent"
)

// maxDepth bounds how deep a body is nested. References are looked for level by level.
const maxDepth = 64

// bodyTimeout bounds how long a client may take to send its body.
const bodyTimeout = 30 * time.Second

// readBody reads a request's body: JSON, not larger than allowed, every key once and known, every value of the right
// type. It returns the body as it was sent, "{}" for an empty one. The error is a problem that names each place at fault.
func (a *API) readBody(w http.ResponseWriter, r *http.Request, into any) (json.RawMessage, error) {
	raw, err := a.readRaw(w, r)
	if err != nil {
		return nil, err
	}
	if len(bytes.TrimLeft(raw, " \t\r\n")) == 0 {
		return json.RawMessage("{}"), nil
	}
	if err := checkMediaType(r.Header); err != nil {
		return nil, err
	}
	if !utf8.Valid(raw) {
		return nil, newProblem(http.StatusBadRequest, "malformed-json", "the body is not UTF-8")
	}
	var syntax *json.SyntaxError
	if err := json.Unmarshal(raw, new(json.RawMessage)); errors.As(err, &syntax) {
		return nil, newProblem(http.StatusBadRequest, "malformed-json", "the body is not JSON: at byte %d: %s", syntax.Offset, syntax.Error())
	} else if err != nil {
		return nil, newProblem(http.StatusBadRequest, "malformed-json", "the body is not JSON: %s", err)
	}
	if err := checkText(raw); err != nil {
		return nil, err
	}
	d := decoder{}
	d.value(bytes.TrimSpace(raw), reflect.ValueOf(into).Elem(), "")
	switch {
	case d.unknown:
		return nil, faultyBody(http.StatusBadRequest, "invalid-body", d.faults)
	case len(d.faults) > 0:
		return nil, faultyBody(http.StatusUnprocessableEntity, "invalid-request", d.faults)
	}
	return raw, nil
}

func (a *API) readRaw(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	rc := http.NewResponseController(w)
	// The deadline must be gone before the handler goes on: net/http watches the connection by reading from it, and takes a
	// deadline that passes for a client that has left. A writer without deadlines is read from all the same.
	_ = rc.SetReadDeadline(time.Now().Add(bodyTimeout))
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, a.cfg.MaxBody))
	_ = rc.SetReadDeadline(time.Time{})
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, newProblem(http.StatusRequestEntityTooLarge, "body-too-large", "the body is larger than %d bytes", large.Limit)
	case err != nil:
		return nil, newProblem(http.StatusBadRequest, "unreadable-body", "the body could not be read: %s", err)
	}
	return raw, nil
}

func checkMediaType(h http.Header) error {
	unsupported := func(format string, args ...any) error {
		return newProblem(http.StatusUnsupportedMediaType, "unsupported-media-type", format, args...)
	}
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return unsupported("the body has Content-Encoding %q; send it plain", enc)
	}
	kind, params, err := mime.ParseMediaType(h.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return unsupported("the body has Content-Type %q; want application/json", h.Get("Content-Type"))
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return unsupported("the body has charset %q; want utf-8", charset)
	}
	return nil
}

// checkText goes through a JSON document for what Go's decoder lets pass: keys that stand twice, NUL characters, which
// Postgres cannot keep in a text, and nesting without end.
func checkText(raw []byte) error {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var twice, nul []fault
	deep := false
	var walk func(at string, depth int)
	walk = func(at string, depth int) {
		if deep = deep || depth > maxDepth; deep {
			return
		}
		token, _ := dec.Token() // it is well-formed: that has been checked
		text, isText := token.(string)
		if isText && strings.ContainsRune(text, 0) {
			nul = append(nul, fault{at, "a text may not hold the character NUL"})
		}
		switch token {
		case json.Delim('{'):
			seen := map[string]bool{}
			for dec.More() && !deep {
				token, _ := dec.Token()
				key, _ := token.(string)
				place := at + "/" + agent.EscapeToken(key)
				if seen[key] {
					twice = append(twice, fault{place, "the key stands twice"})
				}
				if strings.ContainsRune(key, 0) {
					nul = append(nul, fault{at, "a key may not hold the character NUL"})
				}
				seen[key] = true
				walk(place, depth+1)
			}
			_, _ = dec.Token()
		case json.Delim('['):
			for i := 0; dec.More() && !deep; i++ {
				walk(at+"/"+strconv.Itoa(i), depth+1)
			}
			_, _ = dec.Token()
		}
	}
	walk("", 0)
	switch {
	case deep:
		return newProblem(http.StatusBadRequest, "malformed-json", "the body is nested deeper than %d levels", maxDepth)
	case len(twice) > 0:
		return faultyBody(http.StatusBadRequest, "invalid-body", twice)
	case len(nul) > 0:
		return faultyBody(http.StatusUnprocessableEntity, "invalid-request", nul)
	}
	return nil
}

// decoder is a strict json.Unmarshal that collects every fault with the pointer of its place: keys are matched exactly,
// an unknown one is a fault. null leaves a value as it is.
type decoder struct {
	faults []fault
	// unknown: one of the faults is a field that does not exist.
	unknown bool
}

func (d *decoder) fault(at, format string, args ...any) {
	d.faults = append(d.faults, fault{at, fmt.Sprintf(format, args...)})
}

func (d *decoder) value(raw json.RawMessage, v reflect.Value, at string) {
	if string(raw) == "null" {
		return
	}
	switch target := v.Addr().Interface().(type) {
	case *json.RawMessage:
		*target = slices.Clone(raw)
		return
	case json.Unmarshaler:
		if err := target.UnmarshalJSON(raw); err != nil {
			d.fault(at, "%s", err)
		}
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		d.value(raw, v.Elem(), at)
	case reflect.Struct:
		d.object(raw, v, at)
	case reflect.Slice:
		var items []json.RawMessage
		if json.Unmarshal(raw, &items) != nil {
			d.fault(at, "want an array, have %s", kindOf(raw))
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
		for i, item := range items {
			d.value(item, v.Index(i), at+"/"+strconv.Itoa(i))
		}
	case reflect.Map:
		if json.Unmarshal(raw, v.Addr().Interface()) != nil {
			d.fault(at, "want an object, have %s", kindOf(raw))
		}
	default:
		if json.Unmarshal(raw, v.Addr().Interface()) != nil {
			d.fault(at, "want %s, have %s", wanted(v.Kind()), kindOf(raw))
		}
	}
}

func (d *decoder) object(raw json.RawMessage, v reflect.Value, at string) {
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) != nil {
		d.fault(at, "want an object, have %s", kindOf(raw))
		return
	}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		if field, ok := fields[name]; ok {
			d.value(field, v.Field(i), at+"/"+name)
			delete(fields, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		d.unknown = true
		d.fault(at+"/"+agent.EscapeToken(name), "there is no such field")
	}
}

func wanted(kind reflect.Kind) string {
	switch kind {
	case reflect.String:
		return "a text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	default:
		return "a number"
	}
}

func kindOf(raw json.RawMessage) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a text"
	case 't', 'f':
		return string(raw)
	}
	return "the number " + agent.Preview(string(raw), 32)
}
