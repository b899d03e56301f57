package wire

import (
	"encoding/json"
	"strings"
)

// PastArguments are the arguments of an earlier call as the transcript shows them. Several servers parse them and refuse the
// whole conversation when a model once wrote something that is not JSON, so that is shown as a string within JSON.
func PastArguments(arguments string) string {
	if strings.TrimSpace(arguments) == "" {
		return "{}"
	}
	if json.Valid([]byte(arguments)) {
		return arguments
	}
	return quoted(arguments)
}

// PastObject is PastArguments for vendors that take nothing but an object.
func PastObject(arguments string) json.RawMessage {
	arguments = PastArguments(arguments)
	var fields map[string]json.RawMessage
	if json.Unmarshal([]byte(arguments), &fields) != nil || fields == nil {
		arguments = quoted(arguments)
	}
	return json.RawMessage(arguments)
}

func quoted(arguments string) string {
	raw, err := json.Marshal(map[string]string{"malformed_arguments": arguments})
	if err != nil {
		return "{}"
	}
	return string(raw)
}
