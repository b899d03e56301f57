package rules

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "runledger"

// root is where go.mod stands, seen from this folder.
const root = "../.."

// source is one Go file of the tree, whatever system it is for.
type source struct {
	name    string // path from the root
	pkg     string // its package's path from the root
	test    bool
	lines   int
	file    *ast.File
	fset    *token.FileSet
	imports []string
}

// sources parses the tree, apart from modules of their own, testdata and hidden folders.
func sources(t *testing.T) []source {
	t.Helper()
	var all []source
	fset := token.NewFileSet()
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name == "." {
				return nil
			}
			base := entry.Name()
			_, nested := os.Stat(filepath.Join(root, name, "go.mod"))
			if nested == nil || base == "testdata" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(fset, name, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s := source{name: name, pkg: path.Dir(name), test: strings.HasSuffix(name, "_test.go"), file: file, fset: fset,
			lines: strings.Count(string(text), "\n")}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			s.imports = append(s.imports, imported)
		}
		all = append(all, s)
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

// at says where in a file a node stands.
func (s source) at(n ast.Node) string { return s.fset.Position(n.Pos()).String() }

// selects finds uses of names of an imported package, such as time.Now, under whatever name it is imported.
func (s source) selects(imported string, names ...string) []ast.Node {
	local := ""
	for _, spec := range s.file.Imports {
		if spec.Path.Value != strconv.Quote(imported) {
			continue
		}
		local = path.Base(imported)
		if spec.Name != nil {
			local = spec.Name.Name
		}
	}
	if local == "" {
		return nil
	}
	var found []ast.Node
	ast.Inspect(s.file, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, ok := sel.X.(*ast.Ident); ok && x.Name == local && slices.Contains(names, sel.Sel.Name) {
			found = append(found, sel)
		}
		return true
	})
	return found
}

// within reports whether an import path is prefix or below it.
func within(imported, prefix string) bool {
	return imported == prefix || strings.HasPrefix(imported, prefix+"/")
}
