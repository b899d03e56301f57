package tool

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/google/jsonschema-go/jsonschema"

	"runledger/agent"
)

// Edit checks arguments that somebody puts in the place of those that a call was to be made with. Whoever edits them was shown
// [Redacted] where a secret stands: given back, it stands for the secret. edited are the arguments to call with and shown what may
// be shown of them; faults, when there are any, say what does not fit instead.
func (v *Validator) Edit(asked, by json.RawMessage) (edited, shown json.RawMessage, faults []agent.PlanFault) {
	edited = by
	if v.secrets && bytes.Contains(by, []byte(Redacted)) {
		restored, fault := v.restore(v.alongside([]*jsonschema.Schema{v.root}), by, asked, "")
		if fault != nil {
			return nil, nil, []agent.PlanFault{{Pointer: fault.Pointer, Message: fault.Message}}
		}
		edited = restored
	}
	for _, f := range v.check(edited, false) {
		faults = append(faults, agent.PlanFault{Pointer: f.Pointer, Message: f.Message})
	}
	if len(faults) > 0 {
		return nil, nil, faults
	}
	return edited, v.Public(edited), nil
}

// restore copies a value and puts the secrets of another one in the places where they are only shown.
func (v *Validator) restore(schemas []*jsonschema.Schema, value, from json.RawMessage, at string) (json.RawMessage, *ArgumentError) {
	value, from = bytes.TrimSpace(value), bytes.TrimSpace(from)
	for _, s := range schemas {
		if !isSecret(s) || string(value) != Redacted {
			continue
		}
		if len(from) == 0 {
			return nil, &ArgumentError{Pointer: at, Message: "there was no secret here that " + Redacted + " could stand for; give its value"}
		}
		return from, nil
	}
	switch {
	case len(value) > 0 && value[0] == '{':
		var object, old map[string]json.RawMessage
		if json.Unmarshal(value, &object) != nil {
			return value, nil // the check says what is wrong with it
		}
		_ = json.Unmarshal(from, &old)
		for name, item := range object {
			restored, fault := v.restore(v.ofField(schemas, name), item, old[name], at+"/"+agent.EscapeToken(name))
			if fault != nil {
				return nil, fault
			}
			object[name] = restored
		}
		out, err := json.Marshal(object)
		if err != nil {
			return value, nil
		}
		return out, nil
	case len(value) > 0 && value[0] == '[':
		var array, old []json.RawMessage
		if json.Unmarshal(value, &array) != nil {
			return value, nil
		}
		_ = json.Unmarshal(from, &old)
		for i, item := range array {
			var was json.RawMessage
			if i < len(old) {
				was = old[i]
			}
			restored, fault := v.restore(v.ofItem(schemas, i), item, was, at+"/"+strconv.Itoa(i))
			if fault != nil {
				return nil, fault
			}
			array[i] = restored
		}
		out, err := json.Marshal(array)
		if err != nil {
			return value, nil
		}
		return out, nil
	}
	return value, nil
}

// EditCall is [Validator.Edit] for a tool as a run's record keeps it. The error is that of a schema that cannot be used.
func EditCall(ref agent.ToolRef, asked, by json.RawMessage) (edited, shown json.RawMessage, faults []agent.PlanFault, err error) {
	v, err := CompileSchema(SpecOf(ref))
	if err != nil {
		return nil, nil, nil, err
	}
	edited, shown, faults = v.Edit(asked, by)
	return edited, shown, faults, nil
}
