// Package framework knows what a complete checkpoint looks like: one small file per training
// framework behind one interface. It reads directories and never executes, changes or deletes
// anything; when a checkpoint is made durable is decided elsewhere.
package framework

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

// Unit is one checkpoint in a directory: a file, or a directory with all that is below it.
type Unit struct {
	Name     string   // in the directory
	Step     int64    // training step; -1: neither the name nor the content says
	Files    []string // regular files, relative to the directory, with slashes, ordered
	Bytes    int64    // sum of their sizes
	ModTime  time.Time
	Complete bool
	Why      string // why it is not complete, for people
}

// Evidence is what is known about a directory beside what lies in it.
type Evidence struct {
	// Renamed reports whether name was seen being renamed into place. Nil: nothing was seen.
	Renamed func(name string) bool
	// Settled: nobody writes there. What is there counts without having been seen renamed.
	Settled bool
	// Writers are the files, relative to the directory, that some process has open for writing.
	Writers []string
}

// Framework recognises the checkpoints of one framework. Safe for concurrent use.
type Framework interface {
	// Name is the value of --framework. That of auto is what it took the newest checkpoint of its
	// last scan for; before, it is auto.
	Name() string
	// Scan lists the checkpoints directly in dir, complete or not, oldest first (by step, then time).
	// What disappears during the scan is passed over. ErrNotFound if dir does not exist.
	Scan(dir string, ev Evidence) ([]Unit, error)
}

// Options of ByName.
type Options struct {
	Marker string // generic: name of the file that says that a checkpoint is complete
}

// ByName returns a framework. ErrInvalid names those of this version.
func ByName(name string, o Options) (Framework, error) {
	if o.Marker != "" && (o.Marker != filepath.Base(o.Marker) || o.Marker == "." || o.Marker == "..") {
		return nil, fmt.Errorf("%w: marker %q: give a file name without a directory", handlers.ErrInvalid, o.Marker)
	}
	if o.Marker != "" && name != "generic" && name != "auto" {
		return nil, fmt.Errorf("%w: a marker goes with generic, not with %s", handlers.ErrInvalid, name)
	}
	switch name {
	case "generic":
		return generic{marker: o.Marker}, nil
	case "torch":
		return newTorch(), nil
	case "auto":
		if o.Marker != "" {
			return generic{marker: o.Marker}, nil
		}
		return newAuto(), nil
	case "huggingface", "accelerate", "lightning", "dcp", "deepspeed", "megatron", "nemo", "composer", "orbax":
		return nil, fmt.Errorf("%w: %s is not in this version, which has auto, torch and generic", handlers.ErrInvalid, name)
	}
	return nil, fmt.Errorf("%w: %q is unknown: use auto, torch or generic", handlers.ErrInvalid, name)
}

// temporary are names that say so themselves.
var temporary = regexp.MustCompile(`(?i)^\.|^tmp|^temp[._-]|~$|\.lock$|` +
	`\.(tmp|temp|part|partial|incomplete)([0-9]*|[._-].*)$|[_-](tmp|temp|partial|incomplete|unfinished)$`)

// entry is a file or directory that may be a checkpoint.
type entry struct {
	Unit
	dir  bool
	temp string // a file in it whose name says that it is temporary; empty: there is none
}

// judge decides about an entry: it sets what it knows of Complete, Why, Step and Files. False: the
// entry is none of this framework's checkpoints.
type judge func(root *os.Root, e *entry) bool

// scan lists the units of dir.
func scan(dir string, ev Evidence, judge judge) ([]Unit, error) {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: checkpoint directory %s", handlers.ErrNotFound, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: open checkpoint directory: %w", handlers.ErrUnavailable, err)
	}
	defer func() { _ = root.Close() }()
	found, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, fmt.Errorf("%w: read checkpoint directory: %w", handlers.ErrUnavailable, err)
	}
	var units []Unit
	for _, d := range found {
		if temporary.MatchString(d.Name()) || !d.Type().IsRegular() && !d.IsDir() {
			continue // a link such as "latest" is no checkpoint of its own
		}
		e := &entry{Unit: Unit{Name: d.Name(), Step: lastNumber(d.Name()), Complete: true}, dir: d.IsDir()}
		if err := e.collect(root, e.Name); err != nil || len(e.Files) == 0 {
			continue // it went away, or is empty
		}
		if !judge(root, e) {
			continue
		}
		for _, w := range ev.Writers {
			if slices.Contains(e.Files, w) || strings.HasPrefix(w, e.Name+"/") {
				e.not(w + " is still being written")
			}
		}
		units = append(units, e.Unit)
	}
	sortUnits(units)
	return units, nil
}

// sortUnits puts the oldest first.
func sortUnits(units []Unit) {
	slices.SortStableFunc(units, func(a, b Unit) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), a.ModTime.Compare(b.ModTime), cmp.Compare(a.Name, b.Name))
	})
}

// not says why the unit is not complete.
func (e *entry) not(why string) { e.Complete, e.Why = false, why }

// collect adds the files at and below name. A link counts as the file that it leads to, as long as
// that is in the checkpoint directory.
func (e *entry) collect(root *os.Root, name string) error {
	return fs.WalkDir(root.FS(), name, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			if target, statErr := root.Stat(p); statErr == nil && target.Mode().IsRegular() {
				info = target
			} else {
				e.not("its link " + p + " leads to no file in the checkpoint directory")
				return nil
			}
		}
		if info.ModTime().After(e.ModTime) && !info.IsDir() {
			e.ModTime = info.ModTime()
		}
		if info.Mode().IsRegular() {
			e.Files = append(e.Files, p)
			e.Bytes += info.Size()
			if temporary.MatchString(path.Base(p)) && !strings.HasPrefix(path.Base(p), ".") {
				e.temp = p
			}
		}
		return nil
	})
}

var number = regexp.MustCompile(`[0-9]+`)

// lastNumber is the last number of a name without its extension, -1 if there is none.
func lastNumber(name string) int64 {
	all := number.FindAllString(strings.TrimSuffix(name, path.Ext(name)), -1)
	if len(all) == 0 {
		return -1
	}
	n, err := strconv.ParseInt(all[len(all)-1], 10, 64)
	if err != nil {
		return -1
	}
	return n
}
