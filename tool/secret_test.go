package tool_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"runledger/tool"
)

func compile(t testing.TB, schema string) *tool.Validator {
	t.Helper()
	v, err := tool.CompileSchema(tool.Spec{Name: "t", InputSchema: json.RawMessage(schema)})
	require.NoError(t, err)
	return v
}

func TestPublicArguments(t *testing.T) {
	t.Parallel()
	const secret = `{"type": "string", "writeOnly": true}`
	for name, tc := range map[string]struct{ schema, args, want string }{
		"writeOnly": {`{"type": "object", "properties": {"user": {"type": "string"}, "token": ` + secret + `}}`,
			`{"user": "ann", "token": "hunter2"}`, `{"token":"[redacted]","user":"ann"}`},
		"password": {`{"type": "object", "properties": {"token": {"type": "string", "format": "password"}}}`,
			`{"token": "hunter2"}`, `{"token":"[redacted]"}`},
		"another format": {`{"type": "object", "properties": {"at": {"type": "string", "format": "date"}, "token": ` + secret + `}}`,
			`{"at": "2020-01-01"}`, `{"at":"2020-01-01"}`},
		"nested": {`{"type": "object", "properties": {"auth": {"type": "object", "properties": {"token": ` + secret + `}}}}`,
			`{"auth": {"token": "hunter2", "n": 9007199254740993.10}}`, `{"auth":{"n":9007199254740993.10,"token":"[redacted]"}}`},
		"a whole object": {`{"type": "object", "properties": {"auth": {"type": "object", "writeOnly": true}}}`,
			`{"auth": {"token": "hunter2"}}`, `{"auth":"[redacted]"}`},
		"all arguments": {`{"type": "object", "writeOnly": true}`, `{"token": "hunter2"}`, `"[redacted]"`},
		"items": {`{"type": "object", "properties": {"list": {"type": "array", "items": {"type": "object", "properties": {"token": ` + secret + `}}}}}`,
			`{"list": [{"token": "hunter2", "id": 1}, {"id": 2}]}`, `{"list":[{"id":1,"token":"[redacted]"},{"id":2}]}`},
		"a leading item": {`{"type": "object", "properties": {"pair": {"type": "array", "prefixItems": [{"type": "string"}, ` + secret + `], "items": {"type": "integer"}}}}`,
			`{"pair": ["ann", "hunter2", 3]}`, `{"pair":["ann","[redacted]",3]}`},
		"the items that follow": {`{"type": "object", "properties": {"pair": {"type": "array", "prefixItems": [{"type": "string"}], "items": ` + secret + `}}}`,
			`{"pair": ["ann", "hunter2"]}`, `{"pair":["ann","[redacted]"]}`},
		"leading items of draft 07": {`{"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"pair": {"type": "array", "items": [{}, ` + secret + `], "additionalItems": {"writeOnly": true}}}}`,
			`{"pair": ["ann", "hunter2", "hunter3"]}`, `{"pair":["ann","[redacted]","[redacted]"]}`},
		"by pattern": {`{"type": "object", "patternProperties": {"_token$": ` + secret + `}}`,
			`{"my_token": "hunter2", "user": "ann"}`, `{"my_token":"[redacted]","user":"ann"}`},
		"additional": {`{"type": "object", "properties": {"user": {}}, "additionalProperties": ` + secret + `}`,
			`{"user": "ann", "any": "hunter2"}`, `{"any":"[redacted]","user":"ann"}`},
		"by reference": {`{"type": "object", "properties": {"a": {"$ref": "#/$defs/auth"}}, "$defs": {"auth": {"type": "object", "properties": {"token": ` + secret + `}}}}`,
			`{"a": {"token": "hunter2"}}`, `{"a":{"token":"[redacted]"}}`},
		"recursive": {`{"type": "object", "properties": {"next": {"$ref": "#"}, "token": ` + secret + `}}`,
			`{"next": {"next": {"token": "hunter2"}}, "token": "hunter2"}`, `{"next":{"next":{"token":"[redacted]"}},"token":"[redacted]"}`},
		"in one of several forms": {`{"type": "object", "properties": {"auth": {"anyOf": [{"type": "integer"}, ` + secret + `]}}}`,
			`{"auth": 12345}`, `{"auth":"[redacted]"}`},
		"in a part of the schema": {`{"type": "object", "allOf": [{"properties": {"token": ` + secret + `}}]}`, `{"token": "hunter2"}`, `{"token":"[redacted]"}`},
		"under a condition": {`{"type": "object", "if": {"required": ["token"]}, "then": {"properties": {"token": ` + secret + `}}}`,
			`{"token": "hunter2"}`, `{"token":"[redacted]"}`},
		"names like pointers": {`{"type": "object", "properties": {"a/b~": ` + secret + `}}`, `{"a/b~": "hunter2"}`, `{"a/b~":"[redacted]"}`},
		"no secrets":          {`{"type": "object", "properties": {"user": {"type": "string"}}}`, ` { "user" : 5 `, ` { "user" : 5 `},
		"a property of that name": {`{"type": "object", "properties": {"writeOnly": {"type": "boolean"}, "format": {"type": "string"}}}`,
			` {"writeOnly": true, "format": "password"}`, ` {"writeOnly": true, "format": "password"}`},
		"no arguments": {`{"type": "object", "properties": {"token": ` + secret + `}}`, ``, ``},
		"arguments that do not fit": {`{"type": "object", "properties": {"n": {"type": "integer"}, "token": ` + secret + `}, "additionalProperties": false}`,
			`{"Token": "hunter2"}`, `"[redacted]"`},
		"arguments that are no JSON": {`{"type": "object", "properties": {"token": ` + secret + `}}`, `{"token": "hunter2"`, `"[redacted]"`},
		"a secret twice":             {`{"type": "object", "properties": {"token": ` + secret + `}}`, `{"token": "hunter2", "token": "hunter3"}`, `"[redacted]"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, string(compile(t, tc.schema).Public(json.RawMessage(tc.args))))
		})
	}
}

func TestHoldsSecrets(t *testing.T) {
	t.Parallel()
	require.True(t, compile(t, `{"type": "object", "properties": {"a": {"$ref": "#/$defs/y"}}, "$defs": {"y": {"items": {"writeOnly": true}}}}`).HoldsSecrets())
	require.False(t, compile(t, `{"type": "object", "properties": {"a": {"readOnly": true, "writeOnly": false, "format": "email"}}}`).HoldsSecrets())
}

// What is wrong with arguments goes on record too.
func TestFaultsDoNotRepeatSecrets(t *testing.T) {
	t.Parallel()
	v := compile(t, `{"type": "object", "properties": {
		"pin": {"type": "string", "writeOnly": true, "enum": ["1234"]}, "pins": {"type": "array", "items": {"type": "integer", "format": "password"}},
		"auth": {"type": "object", "writeOnly": true, "properties": {"code": {"type": "integer"}}},
		"user": {"type": "string"}, "extra": {"type": "object", "unevaluatedProperties": false}}, "required": ["pin"]}`)
	for args, want := range map[string]string{
		`{"pin": "hunter2"}`:                           "/pin: does not fit",
		`{"pin": "1234", "pins": [1, "hunter2"]}`:      "/pins/1: does not fit",
		`{"pin": "1234", "auth": {"code": "hunter2"}}`: "/auth/code: does not fit",
		`{"pin": "1234", "auth": "hunter2"}`:           "/auth: does not fit",
		`{"pin": "1234", "extra": {"hunter2": 1}}`:     "does not fit the schema",
		`{}`:                         "/pin: is required",
		`{"pin": "1234", "user": 5}`: "/user: want string, have 5",
	} {
		err := v.Validate(json.RawMessage(args))
		require.ErrorContains(t, err, want, args)
		require.NotContains(t, err.Error(), "hunter2")
		require.NotContains(t, v.ValidatePlan(json.RawMessage(args)).Error(), "hunter2")
	}
}
