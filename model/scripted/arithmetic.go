package scripted

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// expression is a piece of arithmetic within a text.
type expression struct {
	text     string // in the calculator's form
	from, to int
}

const (
	// maxExpression bounds an expression that is handed to the calculator, maxNesting its parentheses.
	maxExpression = 1000
	maxNesting    = 40
)

var (
	listed     = regexp.MustCompile(`(?i)\b(add|(?:the )?sum of|sum|(?:the )?total of|multiply|(?:the )?product of) +(` + numeral + `(?: *(?:, and|,|and|to|by|with) *` + numeral + `)+)`)
	divide     = regexp.MustCompile(`(?i)\bdivide +(` + numeral + `) +by +(` + numeral + `)`)
	subtract   = regexp.MustCompile(`(?i)\bsubtract +(` + numeral + `) +from +(` + numeral + `)`)
	difference = regexp.MustCompile(`(?i)\b(?:the )?difference between +(` + numeral + `) +and +(` + numeral + `)`)
	// tight is what may be a range, a date or a fraction as well: 3-5, 2026-11, 1/2.
	tight = regexp.MustCompile(`^(?:\d+(?:-\d+)+|\d+/\d+)$`)
	asks  = regexp.MustCompile(`(?i)\b(?:what|what's|calculate|compute|evaluate|how much|work out|solve|result)\b|=`)
)

const numeral = `-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?`

// arithmetic finds the expressions in a text, in order.
func arithmetic(text string) []expression {
	rest := []byte(text)
	var found []expression
	take := func(m []int, expr string) {
		if slices.Equal(rest[m[0]:m[1]], []byte(text[m[0]:m[1]])) && standsAlone(text, m[0], m[1]) && len(expr) <= maxExpression {
			found = append(found, expression{text: expr, from: m[0], to: m[1]})
			blank(rest, m[0], m[1])
		}
	}
	for _, m := range listed.FindAllStringSubmatchIndex(text, -1) {
		sign := " + "
		if verb := strings.ToLower(text[m[2]:m[3]]); strings.HasPrefix(verb, "multiply") || strings.Contains(verb, "product") {
			sign = " * "
		}
		numbers := aNumber.FindAllString(text[m[4]:m[5]], -1)
		for i := range numbers {
			numbers[i] = signedNumber(numbers[i])
		}
		take(m, strings.Join(numbers, sign))
	}
	pair := func(pattern *regexp.Regexp, first, second int, sign string) {
		for _, m := range pattern.FindAllStringSubmatchIndex(text, -1) {
			take(m, signedNumber(text[m[2*first]:m[2*first+1]])+sign+signedNumber(text[m[2*second]:m[2*second+1]]))
		}
	}
	pair(divide, 1, 2, " / ")
	pair(subtract, 2, 1, " - ")
	pair(difference, 1, 2, " - ")
	found = append(found, infix(string(rest))...)
	slices.SortStableFunc(found, func(a, b expression) int { return a.from - b.from })
	return found
}

// infix finds expressions that are written out.
func infix(text string) []expression {
	var found []expression
	all := tokens(text)
	asked := asks.MatchString(text)
	for i := 0; i < len(all); {
		switch all[i].kind {
		case tokenNumber, tokenOpen, tokenFunction, tokenRoot, tokenOperator:
		case tokenOther, tokenClose, tokenComma, tokenPercent, tokenOf:
			i++
			continue
		}
		p := parser{tokens: all, at: i}
		if expr, ok := p.sum(); ok && p.operations > 0 && len(expr) <= maxExpression {
			e := expression{text: unwrap(expr), from: all[i].from, to: all[p.at-1].to}
			if said := text[e.from:e.to]; !tight.MatchString(said) || asked || strings.TrimSpace(text) == said {
				found = append(found, e)
			}
			i = p.at
			continue
		}
		i++
	}
	return found
}

// parser reads the longest expression that starts at a token, and writes it in the calculator's form. What follows it may
// be anything.
type parser struct {
	tokens     []token
	at         int
	depth      int
	operations int
}

func (p *parser) next() tokenKind {
	if p.at < len(p.tokens) {
		return p.tokens[p.at].kind
	}
	return tokenOther
}

func (p *parser) sum() (string, bool) {
	left, ok := p.operand()
	if !ok {
		return "", false
	}
	var b strings.Builder
	b.WriteString(left)
	for p.next() == tokenOperator && b.Len() <= maxExpression {
		before := *p
		sign := p.tokens[p.at].text
		p.at++
		right, ok := p.operand()
		if !ok {
			// The operator is the text's: "2 + 2 - that is".
			p.at, p.operations = before.at, before.operations
			break
		}
		p.operations++
		b.WriteString(" " + sign + " " + right)
	}
	return b.String(), true
}

// operand reads a number, a parenthesis or a function, with its sign and percentage.
func (p *parser) operand() (string, bool) {
	if p.depth++; p.depth > maxNesting {
		return "", false
	}
	defer func() { p.depth-- }()
	sign := ""
	if p.next() == tokenOperator {
		switch p.tokens[p.at].text {
		case "-":
			// A sign stands before its number: "5 - 3" is no sign, nor is the dash of "- 3 apples".
			if p.at+1 >= len(p.tokens) || p.tokens[p.at].to != p.tokens[p.at+1].from {
				return "", false
			}
			sign = "-"
		default:
			return "", false
		}
		p.at++
	}
	value, ok := p.atom()
	if !ok {
		return "", false
	}
	value = sign + value
	if p.next() != tokenPercent {
		return value, true
	}
	// "10 % 3" is a remainder, "20% of 50" and "20%" are hundredths.
	if said := p.tokens[p.at]; said.text == "%" && p.startsOperand(p.at+1) {
		p.tokens[p.at].kind = tokenOperator // for good: what follows decides, whoever asks
		return value, true
	}
	p.at++
	p.operations++
	value = "(" + value + " / 100)"
	if p.next() != tokenOf {
		return value, true
	}
	before := *p
	p.at++
	whole, ok := p.operand()
	if !ok {
		p.at, p.operations = before.at, before.operations
		return value, true
	}
	return "(" + value + " * " + whole + ")", true
}

func (p *parser) startsOperand(at int) bool {
	if at >= len(p.tokens) {
		return false
	}
	switch p.tokens[at].kind {
	case tokenNumber, tokenOpen, tokenFunction:
		return true
	case tokenOther, tokenOperator, tokenClose, tokenComma, tokenRoot, tokenPercent, tokenOf:
		return false
	}
	return false
}

func (p *parser) atom() (string, bool) {
	if p.at >= len(p.tokens) {
		return "", false
	}
	t := p.tokens[p.at]
	switch t.kind {
	case tokenNumber:
		p.at++
		return t.text, true
	case tokenOpen:
		p.at++
		return p.arguments("", 1)
	case tokenFunction:
		p.at++
		p.operations++
		return p.arguments(t.text, maxNesting)
	case tokenRoot:
		p.at++
		p.operations++
		inner, ok := p.operand()
		if !ok {
			return "", false
		}
		return "sqrt(" + unwrap(inner) + ")", true
	case tokenOther, tokenOperator, tokenClose, tokenComma, tokenPercent, tokenOf:
	}
	return "", false
}

// arguments reads what stands in parentheses, up to the closing one.
func (p *parser) arguments(function string, most int) (string, bool) {
	var all []string
	for len(all) < most {
		inner, ok := p.sum()
		if !ok {
			return "", false
		}
		all = append(all, inner)
		switch p.next() {
		case tokenClose:
			p.at++
			return function + "(" + strings.Join(all, ", ") + ")", true
		case tokenComma:
			p.at++
		case tokenOther, tokenNumber, tokenOperator, tokenOpen, tokenFunction, tokenRoot, tokenPercent, tokenOf:
			return "", false
		}
	}
	return "", false
}

// unwrap takes the parentheses off an expression that stands in them as a whole.
func unwrap(expr string) string {
	if !strings.HasPrefix(expr, "(") {
		return expr
	}
	depth := 0
	for i, r := range expr {
		switch r {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 && i < len(expr)-1 {
				return expr
			}
		}
	}
	return unwrap(expr[1 : len(expr)-1])
}

func signedNumber(text string) string {
	if rest, negative := strings.CutPrefix(text, "-"); negative {
		return "-" + plainNumber(rest)
	}
	return plainNumber(text)
}

// blank overwrites a piece of text with a byte that is part of nothing, so that other positions stay what they were.
func blank(text []byte, from, to int) {
	for i := from; i < to; i++ {
		text[i] = 1
	}
}

func itoa(n int) string { return strconv.Itoa(n) }
