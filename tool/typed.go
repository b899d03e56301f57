package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
)

// validName is a plain name or that of an MCP tool with its server before it.
var validName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}(/[A-Za-z0-9_-]{1,64})?$`)

// ValidName reports whether name can be the name of a tool: [A-Za-z0-9_-]{1,64}, or "server/tool" with two such parts.
func ValidName(name string) bool { return validName.MatchString(name) }

// checkSpec says what is wrong with a spec, the schema apart.
func checkSpec(s Spec) error {
	switch {
	case !ValidName(s.Name):
		return fmt.Errorf("%q is not a tool name: want 1 to 64 of A-Z a-z 0-9 _ -, or server/tool", s.Name)
	case s.Description == "":
		return fmt.Errorf("tool %s: a description is missing; a model chooses by it", s.Name)
	case !s.Effect.Valid():
		return fmt.Errorf("tool %s: %q is not an effect class", s.Name, s.Effect)
	case s.Timeout < 0:
		return fmt.Errorf("tool %s: the timeout is negative", s.Name)
	}
	if err := s.Limit.Check(); err != nil {
		return fmt.Errorf("tool %s: limit: %w", s.Name, err)
	}
	return nil
}

// Schema infers the input schema of a Go struct: field names from the json tags, descriptions from the jsonschema tags;
// fields with omitempty or omitzero are optional and unknown fields are refused. edit, which may be nil, adds what Go types
// cannot say, as an enum. A json.RawMessage is any JSON value.
func Schema[In any](edit func(*jsonschema.Schema)) (json.RawMessage, error) {
	s, err := jsonschema.For[In](&jsonschema.ForOptions{TypeSchemas: map[reflect.Type]*jsonschema.Schema{
		reflect.TypeFor[json.RawMessage](): {},
		reflect.TypeFor[json.Number]():     {Type: "number"},
	}})
	if err != nil {
		return nil, err
	}
	if edit != nil {
		edit(s)
	}
	return json.Marshal(s)
}

// New makes a tool of a Go function. In must be a struct; its schema is inferred as by [Schema] unless the spec brings
// one, which should then refuse additional properties too: encoding/json takes "URL" for "url". The effect class is external
// unless the spec names another.
//
// The tool decodes its arguments strictly: what does not fit the schema, an unknown field or a key that is there twice is
// an *ArgumentError, and fn is not called. What fn returns as an error is passed on as it is; see [Tool] for what it should
// say. An error of New names what is wrong with the spec or with In.
func New[In, Out any](spec Spec, fn func(ctx context.Context, in In, call Call) (Out, error)) (Tool, error) {
	if spec.Effect == "" {
		spec.Effect = agent.External
	}
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	if fn == nil {
		return nil, fmt.Errorf("tool %s: the function is missing", spec.Name)
	}
	if reflect.TypeFor[In]().Kind() != reflect.Struct {
		return nil, fmt.Errorf("tool %s: the input is %s; want a struct", spec.Name, reflect.TypeFor[In]())
	}
	if spec.InputSchema == nil {
		schema, err := Schema[In](nil)
		if err != nil {
			return nil, fmt.Errorf("tool %s: input schema: %w", spec.Name, err)
		}
		spec.InputSchema = schema
	}
	validator, err := CompileSchema(spec)
	if err != nil {
		return nil, err
	}
	return &typed[In, Out]{spec: spec, validator: validator, fn: fn}, nil
}

// MustNew is [New] for tools that are written in the program. It panics where New returns an error.
func MustNew[In, Out any](spec Spec, fn func(ctx context.Context, in In, call Call) (Out, error)) Tool {
	t, err := New(spec, fn)
	if err != nil {
		panic(err)
	}
	return t
}

type typed[In, Out any] struct {
	spec      Spec
	validator *Validator
	fn        func(context.Context, In, Call) (Out, error)
}

func (t *typed[In, Out]) Spec() Spec { return t.spec }

func (t *typed[In, Out]) Call(ctx context.Context, call Call) (json.RawMessage, error) {
	in, err := t.decode(call.Arguments)
	if err != nil {
		return nil, err
	}
	out, err := t.fn(ctx, in, call)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(out)
	if err != nil {
		// The effect has taken place; it is only its answer that cannot be written down.
		return nil, agent.Unknown(agent.CodeToolFailed, "%s: encode the output: %w", t.spec.Name, err)
	}
	return data, nil
}

func (t *typed[In, Out]) decode(args json.RawMessage) (in In, err error) {
	if err := t.validator.Validate(args); err != nil {
		return in, err
	}
	if len(bytes.TrimSpace(args)) == 0 {
		return in, nil
	}
	dec := json.NewDecoder(bytes.NewReader(args))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&in); err != nil {
		fault := &ArgumentError{Message: err.Error()}
		if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			fault.Pointer = "/" + strings.ReplaceAll(wrong.Field, ".", "/")
			fault.Message = fmt.Sprintf("%s does not fit %s", wrong.Value, wrong.Type)
		}
		return in, fault
	}
	return in, nil
}
