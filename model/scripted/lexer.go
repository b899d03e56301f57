package scripted

import (
	"regexp"
	"strings"
)

// tokenKind says what a token is to the arithmetic within a text. Whatever is not arithmetic is other, and ends an
// expression.
type tokenKind byte

const (
	tokenOther tokenKind = iota
	tokenNumber
	tokenOperator // text is one of + - * / % ^
	tokenOpen
	tokenClose
	tokenComma
	tokenFunction // text is the calculator's name of it; a parenthesis follows
	tokenRoot     // "the square root of"
	tokenPercent  // a % directly behind a number
	tokenOf
)

type token struct {
	kind     tokenKind
	text     string // in the calculator's form
	from, to int    // where it stands in the text
}

var (
	// notArithmetic are digits that are no numbers: dates, times, versions, addresses, telephone numbers, identifiers.
	notArithmetic = regexp.MustCompile(`\b\d{4}-\d{1,2}-\d{1,2}(?:[T ]\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?(?:Z|[+-]\d{2}:?\d{2})?)?` +
		`|\b\d{1,2}/\d{1,2}/\d{2,4}\b|\b\d{1,2}:\d{2}(?::\d{2})?\b|\b\d+\.\d+\.\d+(?:\.\d+)*\b` +
		`|\b\d{3}-\d{3}-\d{4}\b|\b\d{3}-\d{4}\b|\b24/7\b|\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b`)

	// asciiSigns writes signs as the calculator does, in as many bytes, so that positions stay what they were.
	asciiSigns = strings.NewReplacer("×", " *", "·", " *", "⋅", "  *", "÷", " /", "−", "  -")

	lexeme = regexp.MustCompile(`^(?:` + strings.Join([]string{
		`(?P<number>(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)`,
		`(?P<power>\*\*|\^|(?i:to the power of|raised to)\b)`,
		`(?P<times>[*]|(?i:times|multiplied by)\b)`,
		`(?P<by>/|(?i:divided by)\b)`,
		`(?P<plus>\+|(?i:plus)\b)`,
		`(?P<minus>-|(?i:minus)\b)`,
		`(?P<mod>%|(?i:modulo|mod)\b)`,
		`(?P<percent>(?i:percent|per cent)\b)`,
		`(?P<of>(?i:of)\b)`,
		`(?P<root>(?i:(?:the )?square root of)\b)`,
		`(?P<function>(?:sqrt|abs|round|floor|ceil|min|max) ?\()`,
		`(?P<open>\()`,
		`(?P<close>\))`,
		`(?P<comma>,)`,
		`(?P<cross>[xX])`,
		`(?P<word>(?i:(?:twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety)[- ](?:one|two|three|four|five|six|seven|eight|nine)` +
			`|zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen` +
			`|eighteen|nineteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety|hundred|thousand)\b)`,
	}, `|`) + `)`)
	lexemeNames = lexeme.SubexpNames()

	// arithmeticWords are the words that a lexeme may begin with; most words of a text need not be looked at any closer.
	arithmeticWords = wordSet("to raised times multiplied divided plus minus modulo mod percent per of the square sqrt abs round floor " +
		"ceil min max zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen " +
		"eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety hundred thousand")
)

// tokens reads a whole text. It never fails: what is no arithmetic becomes other.
func tokens(text string) []token {
	b := []byte(text)
	for _, m := range notArithmetic.FindAllStringIndex(text, -1) {
		blank(b, m[0], m[1])
	}
	text = asciiSigns.Replace(string(b))
	var all []token
	for at := 0; at < len(text); {
		switch text[at] {
		case ' ', '\t':
			at++
			continue
		}
		t := nextToken(text, at)
		// Two others in a row say no more than one.
		if t.kind != tokenOther || len(all) == 0 || all[len(all)-1].kind != tokenOther {
			all = append(all, t)
		}
		at = t.to
	}
	return all
}

func nextToken(text string, at int) token {
	other := token{kind: tokenOther, from: at, to: wordEnd(text, at)}
	// An x may stand between two numbers: 2x3.
	if letter(text[at]) && lower(text[at]) != 'x' && !arithmeticWords[strings.ToLower(text[at:other.to])] {
		return other
	}
	// An expression has no use for more than this at once, and the pattern need not look further.
	m := lexeme.FindStringSubmatchIndex(text[at:min(len(text), at+64)])
	if m == nil {
		return other
	}
	t := token{from: at, to: at + m[1]}
	said := text[t.from:t.to]
	for i, name := range lexemeNames {
		if name == "" || m[2*i] < 0 {
			continue
		}
		switch name {
		case "number":
			if !standsAlone(text, t.from, t.to) {
				return other
			}
			t.kind, t.text = tokenNumber, plainNumber(said)
		case "word":
			if !standsAlone(text, t.from, t.to) || touches(text, t.from, t.to, "-") {
				return other
			}
			t.kind, t.text = tokenNumber, wordNumber(said)
		case "cross":
			if !betweenOperands(text, at) {
				return other
			}
			t.kind, t.text = tokenOperator, "*"
		case "minus":
			if at > 0 && letter(text[at-1]) { // COVID-19
				return other
			}
			t.kind, t.text = tokenOperator, "-"
		case "mod":
			t.kind, t.text = tokenOperator, "%"
			if said == "%" && at > 0 && digit(text[at-1]) {
				t.kind = tokenPercent
			}
		case "power", "times", "by", "plus":
			t.kind, t.text = tokenOperator, map[string]string{"power": "^", "times": "*", "by": "/", "plus": "+"}[name]
		case "percent":
			t.kind = tokenPercent
		case "of":
			t.kind = tokenOf
		case "root":
			t.kind = tokenRoot
		case "function":
			t.kind, t.text = tokenFunction, strings.TrimRight(said, " (")
			if !standsAlone(text, t.from, t.from+len(t.text)) {
				return other
			}
		case "open":
			t.kind = tokenOpen
		case "close":
			t.kind = tokenClose
		case "comma":
			t.kind = tokenComma
		}
		// A word as an operator must be a word of its own.
		if t.kind != tokenNumber && letter(said[0]) && at > 0 && (letter(text[at-1]) || digit(text[at-1]) && name != "cross") {
			return other
		}
		return t
	}
	return other
}

func wordSet(words string) map[string]bool {
	set := make(map[string]bool)
	for _, w := range strings.Fields(words) {
		set[w] = true
	}
	return set
}

// wordEnd is behind the word or the sign that starts at a place.
func wordEnd(text string, at int) int {
	end := at
	for end < len(text) && (letter(text[end]) || digit(text[end])) {
		end++
	}
	if end == at {
		end++
		for end < len(text) && text[end]&0xc0 == 0x80 { // the rest of a rune
			end++
		}
	}
	return end
}

// standsAlone reports whether digits are a number by themselves: not part of a word, a version or an identifier.
func standsAlone(text string, from, to int) bool {
	if from > 0 {
		before := text[from-1]
		if before == '.' || digit(before) || letter(before) && !(lower(before) == 'x' && betweenOperands(text, from-1)) {
			return false
		}
		// A digit behind "word-" is no number either.
		if before == '-' && from > 1 && letter(text[from-2]) {
			return false
		}
	}
	if to < len(text) {
		after := text[to]
		if letter(after) && !(lower(after) == 'x' && betweenOperands(text, to)) || digit(after) {
			return false
		}
		if after == '.' && to+1 < len(text) && digit(text[to+1]) {
			return false
		}
	}
	return true
}

// betweenOperands reports whether an x at a place multiplies: 2x3, 2 x 3, (1+2) x (3+4).
func betweenOperands(text string, at int) bool {
	before, after := strings.TrimRight(text[:at], " "), strings.TrimLeft(text[at+1:], " ")
	if before == "" || after == "" {
		return false
	}
	last, next := before[len(before)-1], after[0]
	return (digit(last) || last == ')') && (digit(next) || next == '(' || next == '-') &&
		(len(before) == at) == (len(after) == len(text)-at-1) // both sides spaced, or none
}

func touches(text string, from, to int, set string) bool {
	return from > 0 && strings.IndexByte(set, text[from-1]) >= 0 || to < len(text) && strings.IndexByte(set, text[to]) >= 0
}

// plainNumber writes a number as the calculator reads it: no thousands separators, no leading zeros.
func plainNumber(text string) string {
	text = strings.TrimLeft(strings.ReplaceAll(text, ",", ""), "0")
	if text == "" || text[0] == '.' {
		text = "0" + text
	}
	return text
}

func wordNumber(word string) string {
	small := []string{
		"zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
		"fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
	}
	tens := []string{"twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"}
	sum := 0
	for _, part := range strings.FieldsFunc(strings.ToLower(word), func(r rune) bool { return r == ' ' || r == '-' }) {
		switch part {
		case "hundred":
			sum += 100
		case "thousand":
			sum += 1000
		}
		for i, w := range small {
			if w == part {
				sum += i
			}
		}
		for i, w := range tens {
			if w == part {
				sum += 10 * (i + 2)
			}
		}
	}
	return itoa(sum)
}

func letter(b byte) bool {
	return b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || b >= 0x80
}

func digit(b byte) bool { return b >= '0' && b <= '9' }

func lower(b byte) byte {
	if b >= 'A' && b <= 'Z' {
		return b + 'a' - 'A'
	}
	return b
}
