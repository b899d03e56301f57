package wire

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var vendorName = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func TestNames(t *testing.T) {
	t.Parallel()
	long := "server/" + strings.Repeat("x", 70)
	tests := map[string]struct {
		names []string
		want  []string // "" where a hash decides
	}{
		"fine as it is":                          {[]string{"calculator", "a-b_C9"}, []string{"calculator", "a-b_C9"}},
		"server and tool":                        {[]string{"everything/echo", "a.b/c d"}, []string{"everything__echo", "a_b__c_d"}},
		"taken by another":                       {[]string{"a/b", "a__b"}, []string{"", "a__b"}},
		"two that look alike":                    {[]string{"a.b", "a b"}, []string{"", "a_b"}},
		"too long":                               {[]string{long, strings.Repeat("y", 64)}, []string{"", strings.Repeat("y", 64)}},
		"empty, not ASCII":                       {[]string{"", "größe/maß"}, []string{"", "gr__e__ma_"}},
		"64 bytes of letters that are not ASCII": {[]string{strings.Repeat("ß", 64), strings.Repeat("ß", 65)}, []string{strings.Repeat("_", 64), ""}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := MapNames(tt.names)
			for i, want := range tt.want {
				got := n.ToWire(tt.names[i])
				if want != "" {
					require.Equal(t, want, got)
				}
			}
			checkNames(t, tt.names)
		})
	}
}

// checkNames: every name is one that vendors take, no two meet, each comes back, and the order of asking does not matter.
func checkNames(t interface {
	require.TestingT
	Helper()
}, all []string,
) {
	t.Helper()
	n := MapNames(all)
	backwards := slices.Clone(all)
	slices.Reverse(backwards)
	other := MapNames(backwards)
	for _, name := range all {
		wire := n.ToWire(name)
		require.Regexp(t, vendorName, wire)
		require.Equal(t, name, n.FromWire(wire))
		require.Equal(t, wire, other.ToWire(name))
		if vendorName.MatchString(name) {
			require.Equal(t, name, wire)
		}
	}
}

func TestNamesProperty(t *testing.T) {
	t.Parallel()
	// Few letters and many separators, so that names meet.
	name := rapid.StringMatching(`[ab/._ -]{0,4}|[a/]{60,70}|.{0,5}`)
	rapid.Check(t, func(t *rapid.T) { checkNames(t, rapid.SliceOf(name).Draw(t, "names")) })
}

func FuzzNames(f *testing.F) {
	f.Add("everything/echo", "everything__echo", "everything_echo")
	f.Add("", "/", "\xff")
	f.Add(strings.Repeat("a/", 40), strings.Repeat("a/", 41), strings.Repeat("a", 64))
	f.Fuzz(func(t *testing.T, a, b, c string) {
		// A name that an attacker chooses to be the hash of another is the hard case.
		checkNames(t, []string{a, b, c, hashedName(a, 0), hashedName(a, 1)})
	})
}
