// Package scripted holds models that need no vendor.
//
// [New] makes a deterministic model that does what an agent's model does, from the words of the request alone: it plans, it
// calls tools, and it answers from what they gave. It knows four kinds of task: arithmetic within prose (tool calculator), the
// time and the date (clock), web addresses (http_request), and any other tool that the text calls by name, as in "use
// everything/echo to say hello", whose arguments it reads from the words that follow. Tasks after a "then" wait for those
// before it. Everything it does not know it answers in a sentence. It exists so that the whole of Runledger can be tried and
// tested without a key.
//
// The same request gives the same reply, byte for byte. Usage counts words. Request.MaxTokens limits the words of a text.
//
// # Hooks for tests
//
// A hook in the user's text makes the model misbehave, or say something in particular. It stands in double brackets and acts
// where the model writes text; with "plan" before it, where the model plans; with "turn", where it calls tools:
//
//	[[say TEXT]]       say exactly this (of a plan: this JSON)
//	[[words N]]        an answer of N words
//	[[fail]]           a definite failure, MODEL_FAILED
//	[[unavailable]]    a transient failure, MODEL_UNAVAILABLE
//	[[broken]]         half of the answer, then MODEL_STREAM_ENDED
//	[[wait]]           the first word, then silence until the context ends
//	[[refuse]]         an answer with the finish reason content_filter
//	[[garble]]         text, a plan or tool arguments that cannot be read
//
// "[[plan garble]]" thus breaks the plan only, "[[turn unavailable]]" fails while tools are to be called, and "[[wait]]" hangs
// at the answer, after all tools have run. "think aloud", or "think before", "think first" and "think step", in plain words
// make it think where it writes text.
//
// # Scripts
//
// [Replies] makes a model that gives prepared replies, in order or by what is asked, and remembers what it was asked.
//
// The package imports agent, model and the standard library.
package scripted
