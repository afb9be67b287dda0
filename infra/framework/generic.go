package framework

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// generic takes any file or directory that was renamed into place for a checkpoint, or, with a
// marker, any that has it: <directory>/<marker>, or <file>.<marker> beside a file.
type generic struct{ marker string }

func (generic) Name() string { return "generic" }

func (g generic) Scan(dir string, ev Evidence) ([]Unit, error) {
	return scan(dir, ev, func(u *Unit, e fs.DirEntry) { g.judge(dir, u, e, ev) })
}

func (g generic) judge(dir string, u *Unit, e fs.DirEntry, ev Evidence) {
	if g.marker != "" {
		g.marked(dir, u, e)
		return
	}
	if !ev.Settled && (ev.Renamed == nil || !ev.Renamed(u.Name)) {
		u.Complete, u.Why = false, "it was not renamed into place: write under a temporary name and rename, or use --marker"
	}
}

func (g generic) marked(dir string, u *Unit, e fs.DirEntry) {
	marker := filepath.Join(dir, u.Name+"."+g.marker)
	if e.IsDir() {
		marker = filepath.Join(dir, u.Name, g.marker)
	} else if strings.HasSuffix(u.Name, "."+g.marker) {
		u.Name = "" // the marker itself
		return
	}
	if _, err := os.Stat(marker); err != nil {
		u.Complete, u.Why = false, "its marker "+filepath.Base(marker)+" is missing"
	}
}
