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
	// Name is the value of --framework.
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
		return torch{}, nil
	case "auto":
		if o.Marker != "" {
			return generic{marker: o.Marker}, nil
		}
		return auto{}, nil
	case "huggingface", "accelerate", "lightning", "dcp", "deepspeed", "megatron", "nemo", "composer", "orbax":
		return nil, fmt.Errorf("%w: %s is not in this version, which has auto, torch and generic", handlers.ErrInvalid, name)
	}
	return nil, fmt.Errorf("%w: %q is unknown: use auto, torch or generic", handlers.ErrInvalid, name)
}

// auto takes a file that looks like torch's for torch's, and everything else for generic.
type auto struct{}

func (auto) Name() string { return "auto" }

func (auto) Scan(dir string, ev Evidence) ([]Unit, error) {
	return scan(dir, ev, func(u *Unit, e fs.DirEntry) {
		if (torch{}).is(e) {
			(torch{}).judge(dir, u)
		} else {
			(generic{}).judge(dir, u, e, ev)
		}
	})
}

// temporary are names that say so themselves.
var temporary = regexp.MustCompile(`(?i)^\.|~$|\.(tmp|temp|part|partial|incomplete|lock)$|\.(tmp|temp|part|partial|incomplete)[.-]|^(tmp|temp)[._-]`)

// scan lists the units of dir and lets judge say what is special about each.
func scan(dir string, ev Evidence, judge func(*Unit, fs.DirEntry)) ([]Unit, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: checkpoint directory %s", handlers.ErrNotFound, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", handlers.ErrUnavailable, err)
	}
	var units []Unit
	for _, e := range entries {
		if temporary.MatchString(e.Name()) || !e.Type().IsRegular() && !e.IsDir() {
			continue
		}
		u, err := collect(dir, e.Name())
		if err != nil || len(u.Files) == 0 {
			continue // it went away, or is empty
		}
		u.Step, u.Complete = lastNumber(e.Name()), true
		judge(&u, e)
		for _, w := range ev.Writers {
			if w == u.Name || strings.HasPrefix(w, u.Name+"/") {
				u.Complete, u.Why = false, w+" is still being written"
			}
		}
		if u.Name != "" {
			units = append(units, u)
		}
	}
	slices.SortStableFunc(units, func(a, b Unit) int {
		return cmp.Or(cmp.Compare(a.Step, b.Step), a.ModTime.Compare(b.ModTime), cmp.Compare(a.Name, b.Name))
	})
	return units, nil
}

// collect gathers the regular files of a unit.
func collect(dir, name string) (Unit, error) {
	u := Unit{Name: name}
	err := fs.WalkDir(os.DirFS(dir), name, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		if info.ModTime().After(u.ModTime) {
			u.ModTime = info.ModTime()
		}
		if e.Type().IsRegular() {
			u.Files = append(u.Files, p)
			u.Bytes += info.Size()
		}
		return nil
	})
	return u, err
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
