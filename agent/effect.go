package agent

// EffectClass says what executing a command a second time would mean.
type EffectClass string

const (
	// Deterministic commands may run again: the same input gives the same result and nothing outside changes.
	Deterministic EffectClass = "deterministic"
	// Idempotent commands may be repeated with the same idempotency key until they are committed, never after.
	Idempotent EffectClass = "idempotent"
	// External commands are dispatched once. When that dispatch is lost they are in doubt, unless it is known that nothing happened.
	External EffectClass = "external"
)

// Valid reports whether c is one of the three classes.
func (c EffectClass) Valid() bool {
	switch c {
	case Deterministic, Idempotent, External:
		return true
	}
	return false
}
