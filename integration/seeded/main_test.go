package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A mistake whose text is gone would be seeded nowhere. The run itself takes
// minutes; this shows at once that it has to be written anew.
func TestMistakesApply(t *testing.T) {
	for _, m := range mistakes {
		source, err := os.ReadFile(filepath.Join("..", "..", m.file))
		if err != nil {
			t.Error(err)
			continue
		}
		if n := strings.Count(string(source), m.old); n != 1 {
			t.Errorf("%s: %s has the text to replace %d times, want once", m.name, m.file, n)
		}
	}
}
