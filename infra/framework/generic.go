package framework

import (
	"os"
	"path"
	"strings"
)

// generic takes any file or directory that was renamed into place for a checkpoint, or, with a
// marker, any that has it: a file of that name in the directory, or <file>.<marker> beside the
// file. The marker is written last; it is part of the checkpoint, and one that is older than
// another of its files is of a save before.
type generic struct{ marker string }

func (generic) Name() string { return "generic" }

func (g generic) Scan(dir string, ev Evidence) ([]Unit, error) {
	return scan(dir, ev, func(root *os.Root, e *entry) bool { return g.judge(root, e, ev) })
}

func (g generic) judge(root *os.Root, e *entry, ev Evidence) bool {
	switch renamed := ev.Renamed != nil && ev.Renamed(e.Name); {
	case g.marker != "":
		return g.marked(root, e)
	case renamed:
	case !ev.Settled:
		e.not("it was not renamed into place: write under a temporary name and rename, or use --marker")
	case e.temp != "":
		e.not("it was not finished: " + e.temp + " is a temporary file")
	}
	return true
}

func (g generic) marked(root *os.Root, e *entry) bool {
	beside := "." + strings.TrimPrefix(g.marker, ".")
	marker := e.Name + beside
	if e.dir {
		marker = path.Join(e.Name, g.marker)
	} else if strings.HasSuffix(e.Name, beside) || e.Name == g.marker {
		return false // a marker itself
	}
	info, err := root.Stat(marker)
	if err != nil {
		e.not("its marker " + marker + " is missing")
		return true
	}
	if !e.dir {
		e.Files = append(e.Files, marker)
		e.Bytes += info.Size()
	}
	if info.ModTime().Before(e.ModTime) {
		e.not("its marker " + marker + " is older than its data: the save before wrote it")
	}
	if info.ModTime().After(e.ModTime) {
		e.ModTime = info.ModTime()
	}
	return true
}
