package transfer

import (
	"fmt"
	"path"
	"strings"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// check refuses a manifest whose files would not all lie at or below its unit, each at a place of
// its own. Whoever can write to the store wrote it: nothing in it is taken on trust.
func check(m handlers.Manifest) error {
	bad := func(name, why string) error {
		return fmt.Errorf("%w: the manifest of checkpoint %s names %q, %s: it is not restored", handlers.ErrPermanent, m.Ref(), name, why)
	}
	if why := checkPath(m.Unit); why != "" {
		return bad(m.Unit, "which "+why)
	}
	if strings.Contains(m.Unit, "/") {
		return bad(m.Unit, "which is no single name")
	}
	files := map[string]bool{}
	for _, f := range m.Files {
		if why := checkPath(f.Path); why != "" {
			return bad(f.Path, "which "+why)
		}
		switch {
		case f.Path != m.Unit && !strings.HasPrefix(f.Path, m.Unit+"/"):
			return bad(f.Path, "which is outside of "+m.Unit)
		case files[f.Path]:
			return bad(f.Path, "twice")
		case f.Size < 0:
			return bad(f.Path, "with a negative size")
		}
		files[f.Path] = true
	}
	if len(files) == 0 {
		return bad(m.Unit, "without a file")
	}
	for name := range files {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if files[parent] {
				return bad(parent, "both as a file and as a directory")
			}
		}
	}
	return nil
}

// checkPath says what is wrong with the name of a file in a checkpoint: nothing, if it is relative
// and plain, and every store and every file system can hold it. Uploads keep to it, too.
func checkPath(name string) string {
	switch {
	case strings.Contains(name, `\`):
		return "has a backslash"
	case blob.CheckKey(name) != nil:
		return "is not a relative path of plain names (no empty ones, no dots alone, no control characters, no .reprieve, 255 bytes each, 900 together)"
	}
	return ""
}
