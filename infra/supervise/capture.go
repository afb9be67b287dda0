package supervise

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// ErrChanged: a file of a checkpoint is not what it was. Look at the checkpoint again.
var ErrChanged = fmt.Errorf("%w: a file changed", handlers.ErrConflict)

// clockGrain is longer than the step of the clock that file systems take mtimes from. A change
// within one step of the last look would not show.
const clockGrain = 20 * time.Millisecond

// Captured is a checkpoint that the trainer's rotation cannot pull away. It is used by one
// goroutine at a time.
type Captured struct {
	dir     string // of the links, absolute; removed by Release
	files   []captured
	byFiles bool
}

// captured is one file: a link to it, or a descriptor where links do not work.
type captured struct {
	name string
	link string
	file *os.File // nil if link is set
	was  identity
}

// identity tells a file and its content from any other, as far as a stat can.
type identity struct {
	dev, ino uint64
	size     int64
	mtime    time.Time
}

func identify(info fs.FileInfo) identity {
	st := info.Sys().(*syscall.Stat_t)
	return identity{dev: st.Dev, ino: st.Ino, size: info.Size(), mtime: info.ModTime()}
}

// Capture holds on to files of the checkpoint called name: paths relative to dir, with slashes.
// Each gets a hard link in dir/.reprieve/capture/name, made from an open descriptor, so that what
// was looked at is what is linked. Where links do not work (file systems without, too many,
// foreign owner) the descriptors are kept open instead. Links inside dir are followed, out of it
// not. No data is copied.
//
// Errors: ErrChanged when a file changes, is replaced or removed meanwhile, ErrNotFound when one is gone,
// ErrConflict when name is captured already, ErrInvalid for anything but regular files,
// ErrUnavailable. Nothing is left behind then.
func Capture(dir, name string, files []string) (*Captured, error) {
	if !filepath.IsLocal(name) || filepath.Base(name) != name || name == "." {
		return nil, fmt.Errorf("%w: capture %q: the name of a checkpoint is one path element", handlers.ErrInvalid, name)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: open checkpoint directory %s: %w", handlers.ErrUnavailable, dir, err)
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(filepath.Join(private, "capture"), 0o755); err != nil {
		return nil, fmt.Errorf("%w: make room for captures in %s: %w", handlers.ErrUnavailable, dir, err)
	}
	into := filepath.Join(dir, private, "capture", name)
	if err := os.Mkdir(into, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("%w: capture %s: it is captured already", handlers.ErrConflict, name)
		}
		return nil, fmt.Errorf("%w: capture %s: %w", handlers.ErrUnavailable, name, err)
	}
	c := &Captured{dir: into}
	if err := c.take(root, files); err != nil {
		return nil, errors.Join(fmt.Errorf("capture %s: %w", name, err), c.Release())
	}
	return c, nil
}

func (c *Captured) take(root *os.Root, files []string) error {
	for i, name := range files {
		if err := c.add(root, i, name); err != nil {
			return err
		}
	}
	// All of them still there and the same: so they were all there at once, and are one version.
	// A file that is gone is no proof of that, what it belonged to may have been replaced before.
	for _, f := range c.files {
		info, err := root.Stat(f.name)
		if errors.Is(err, fs.ErrNotExist) || err == nil && identify(info) != f.was {
			return fmt.Errorf("%w: %s was replaced or removed", ErrChanged, f.name)
		}
		if err != nil {
			return fmt.Errorf("%w: look at %s: %w", handlers.ErrUnavailable, f.name, err)
		}
	}
	c.settle()
	return c.Verify()
}

func (c *Captured) add(root *os.Root, i int, name string) error {
	// O_NONBLOCK: a named pipe must not hold us up.
	f, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is gone", handlers.ErrNotFound, name)
	}
	if err != nil {
		return fmt.Errorf("%w: open %s: %w", openClass(err), name, err)
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		_ = f.Close()
		return fmt.Errorf("%w: %s is not a regular file", handlers.ErrInvalid, name)
	}
	entry := captured{name: name, file: f, was: identify(info)}
	link := filepath.Join(c.dir, strconv.Itoa(i))
	err = unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(f.Fd())), unix.AT_FDCWD, link, unix.AT_SYMLINK_FOLLOW)
	if err == nil {
		_ = f.Close()
		entry.file, entry.link = nil, link
	} else {
		c.byFiles = true // ENOENT, too: its last name went away, the descriptor still has it
	}
	c.files = append(c.files, entry)
	return nil
}

// openClass: a link that leads out of the directory stays one; too many open files may pass.
func openClass(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return handlers.ErrUnavailable
	}
	return handlers.ErrInvalid
}

// settle waits out the grain of the file system's clock if a file was written just now, so that
// any later change moves its mtime.
func (c *Captured) settle() {
	now := time.Now()
	for _, f := range c.files {
		if age := now.Sub(f.was.mtime); age >= 0 && age < clockGrain {
			<-time.After(clockGrain - age)
			return
		}
	}
}

// HeldOpen reports whether some files are held by descriptors, because they cannot be linked.
func (c *Captured) HeldOpen() bool { return c.byFiles }

// Sources are the files, in the order they were given in. A source opens as often as one likes,
// until Release.
func (c *Captured) Sources() []Source {
	sources := make([]Source, len(c.files))
	for i, f := range c.files {
		sources[i] = Source{Path: f.name, Open: f.open}
	}
	return sources
}

func (f captured) open() (*os.File, error) {
	path := f.link
	if f.file != nil {
		path = "/proc/self/fd/" + strconv.Itoa(int(f.file.Fd())) // a descriptor with its own offset
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%w: open the captured %s: %w", handlers.ErrUnavailable, f.name, err)
	}
	return file, nil
}

func (f captured) stat() (fs.FileInfo, error) {
	if f.file != nil {
		return f.file.Stat()
	}
	return os.Lstat(f.link)
}

// Verify returns ErrChanged if any file is not what it was when it was captured. What was read
// between Capture and a Verify that returns nil is what was captured.
func (c *Captured) Verify() error {
	for _, f := range c.files {
		info, err := f.stat()
		if err != nil {
			return fmt.Errorf("%w: look at the captured %s: %w", handlers.ErrUnavailable, f.name, err)
		}
		if identify(info) != f.was {
			return fmt.Errorf("%w: %s was written to", ErrChanged, f.name)
		}
	}
	return nil
}

// Release lets go of the files. It may be called again.
func (c *Captured) Release() error {
	for i := range c.files {
		if c.files[i].file != nil {
			_ = c.files[i].file.Close()
		}
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("%w: remove the capture: %w", handlers.ErrUnavailable, err)
	}
	return nil
}

// CleanCaptures removes what a supervisor that was killed left in dir. The caller holds the lock
// of dir (LockDir).
func CleanCaptures(dir string) error {
	if err := os.RemoveAll(filepath.Join(dir, private, "capture")); err != nil {
		return fmt.Errorf("%w: remove old captures: %w", handlers.ErrUnavailable, err)
	}
	return nil
}
