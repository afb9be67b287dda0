package transfer

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	private       = ".reprieve"
	quarantine    = private + "/quarantine"
	restorePrefix = "restore-" // of the temporary directories in private
	placeTries    = 100        // as many restores into one directory may be under way
)

// target is a directory that checkpoints are restored into. No link in it leads out of it.
type target struct{ root *os.Root }

func open(dir string) (*target, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, &dirError{err}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, &dirError{err}
	}
	t := &target{root}
	if err := t.mkdir(private); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

func (t *target) close() { _ = t.root.Close() }

// mkdir makes a directory of our own, which a link in its place is not.
func (t *target) mkdir(name string) error {
	err := t.root.Mkdir(name, 0o755)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = t.root.Lstat(name); err == nil && !info.IsDir() {
			err = fmt.Errorf("%s is not a directory: remove it", name)
		}
	}
	if err != nil {
		return &dirError{err}
	}
	return nil
}

func (t *target) temp() (string, error) {
	name := path.Join(private, restorePrefix+rand.Text())
	if err := t.root.Mkdir(name, 0o755); err != nil {
		return "", &dirError{err}
	}
	return name, nil
}

// place renames the unit of m from tmp into dir, moving what is in its way aside, and makes all of
// that durable, the unit first: whoever sees it after a power failure sees it whole.
func (t *target) place(tmp string, m handlers.Manifest) error {
	if err := t.sync(directories(tmp, m)...); err != nil {
		return err
	}
	for try := 1; ; try++ {
		aside, err := t.moveAside(m.Unit)
		if err != nil {
			return err
		}
		err = t.move(m.Unit, tmp, ".")
		switch {
		case err == nil:
			return t.sync(".")
		case errors.Is(err, fs.ErrExist) && try < placeTries:
			continue // another restore was quicker: it is moved aside now
		case aside != "":
			_ = t.move(m.Unit, aside, ".")
		}
		return &dirError{err}
	}
}

// move renames unit from one directory to another where nothing has its name, or else fs.ErrExist.
func (t *target) move(unit, from, to string) error {
	source, err := t.root.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = source.Close() }()
	dest, err := t.root.Open(to)
	if err != nil {
		return err
	}
	defer func() { _ = dest.Close() }()
	err = unix.Renameat2(int(source.Fd()), unit, int(dest.Fd()), unit, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) { // the file system cannot promise that
		err = unix.Renameat(int(source.Fd()), unit, int(dest.Fd()), unit)
	}
	if err != nil {
		return fmt.Errorf("move %s: %w", unit, err)
	}
	return nil
}

// moveAside moves what is called unit to a new directory in quarantine, which it returns; nothing
// if there is nothing.
func (t *target) moveAside(unit string) (string, error) {
	if _, err := t.root.Lstat(unit); errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	aside, err := t.newAside()
	if err != nil {
		return "", err
	}
	if err := t.move(unit, ".", aside); err != nil {
		_ = t.root.Remove(aside)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil // another restore has moved it
		}
		return "", &dirError{err}
	}
	if err := t.sync(aside, quarantine, private); err != nil {
		_ = t.move(unit, aside, ".")
		return "", err
	}
	return aside, nil
}

// newAside makes quarantine/<time>-<n>, with the first n that is free.
func (t *target) newAside() (string, error) {
	if err := t.mkdir(quarantine); err != nil {
		return "", err
	}
	now := time.Now().UTC().Format("20060102T150405Z")
	for n := 0; ; n++ {
		aside := path.Join(quarantine, now+"-"+strconv.Itoa(n))
		err := t.root.Mkdir(aside, 0o755)
		if err == nil {
			return aside, nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return "", &dirError{err}
		}
	}
}

// directories are those that the files of m lie in below tmp, each before the one that it is in.
func directories(tmp string, m handlers.Manifest) []string {
	seen := map[string]bool{}
	var list []string
	for _, f := range m.Files {
		for d := path.Dir(f.Path); d != "." && !seen[d]; d = path.Dir(d) {
			seen[d] = true
			list = append(list, path.Join(tmp, d))
		}
	}
	slices.SortFunc(list, func(a, b string) int { return len(b) - len(a) })
	return list
}

func (t *target) sync(dirs ...string) error {
	for _, name := range dirs {
		d, err := t.root.Open(name)
		if err != nil {
			return &dirError{err}
		}
		err = d.Sync()
		_ = d.Close()
		if err != nil {
			return &dirError{err}
		}
	}
	return nil
}

// CleanRestores removes what a restore that was killed left in dir. No restore into dir may be
// under way.
func CleanRestores(dir string) error {
	root, err := os.OpenRoot(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: clean the checkpoint directory %s: %w", handlers.ErrInvalid, dir, err)
	}
	defer func() { _ = root.Close() }()
	if info, err := root.Lstat(private); err != nil || !info.IsDir() {
		return nil
	}
	entries, err := fs.ReadDir(root.FS(), private)
	for _, e := range entries {
		if err == nil && strings.HasPrefix(e.Name(), restorePrefix) {
			err = root.RemoveAll(path.Join(private, e.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("%w: remove what a restore left in %s: %w", handlers.ErrInvalid, dir, err)
	}
	return nil
}

// dirError is an error of the directory, not of the store: another try does not mend it.
type dirError struct{ err error }

func (e *dirError) Error() string { return e.err.Error() }

func (e *dirError) explain(dir string, m handlers.Manifest) error {
	if errors.Is(e.err, syscall.ENOSPC) || errors.Is(e.err, syscall.EDQUOT) {
		return fmt.Errorf("%w: there is not enough space in %s for checkpoint %s of %d bytes: free some, or give another directory: %w", handlers.ErrInvalid, dir, m.Ref(), m.Bytes(), e.err)
	}
	return fmt.Errorf("%w: the checkpoint directory %s cannot be written: mend that, or give another one: %w", handlers.ErrInvalid, dir, e.err)
}
