package wire

import "strings"

// What stands for what Runledger's transcripts may hold and some vendors refuse.
const (
	// SaidNothing stands for the text of a message without one.
	SaidNothing = "(no text)"
	// CutOff is what the user says first where a conversation would open with an answer, since its beginning did not fit the
	// prompt.
	CutOff = "(The beginning of this conversation is left out.)"
)

// TextOr is text, or [SaidNothing] where there is none but white space.
func TextOr(text string) string {
	if strings.TrimSpace(text) == "" {
		return SaidNothing
	}
	return text
}
