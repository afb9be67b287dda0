package supervise

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// Change is something that happened to an entry of a directory.
type Change struct {
	Name    string
	Renamed bool // it was renamed to this name: writers that know how to finish do it so
	Dir     bool
	Rescan  bool // changes were lost; look at everything. Name is empty
	Gone    bool // the directory itself was removed, replaced or unmounted; the last change. Name is empty
}

const (
	// watchBuffer is how many changes may wait before the kernel has to keep them.
	watchBuffer = 256
	// pollEvery is the interval where inotify does not work.
	pollEvery = time.Second

	watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_CLOSE_WRITE | unix.IN_DELETE_SELF |
		unix.IN_MOVE_SELF | unix.IN_ONLYDIR
)

// Watcher reports the changes of one directory: entries made, renamed into place, or
// closed after writing; removals are not reported. It does not look into subdirectories, and leaves .reprieve out.
type Watcher struct {
	events  chan Change
	quit    chan struct{}
	once    sync.Once
	worker  sync.WaitGroup
	inotify *os.File // nil when polling
	why     string
}

// WatchDir begins to watch. Where inotify is not to be had it polls every second; see Polling.
// Errors: ErrInvalid when dir is not a directory that can be read.
func WatchDir(dir string) (*Watcher, error) {
	before, err := look(dir)
	if err != nil {
		return nil, fmt.Errorf("%w: watch checkpoint directory %s: %w", handlers.ErrInvalid, dir, err)
	}
	w := &Watcher{events: make(chan Change, watchBuffer), quit: make(chan struct{})}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err == nil {
		if _, err = unix.InotifyAddWatch(fd, dir, watchMask); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		w.why = fmt.Sprintf("inotify does not work (%v): looking every %s", err, pollEvery)
		w.worker.Go(func() {
			tick := time.NewTicker(pollEvery)
			defer tick.Stop()
			w.poll(dir, before, tick.C)
		})
		return w, nil
	}
	w.inotify = os.NewFile(uintptr(fd), "inotify")
	w.worker.Go(w.read)
	return w, nil
}

// Events delivers the changes in order. It is closed after Gone and by Close.
func (w *Watcher) Events() <-chan Change { return w.events }

// Polling says why changes are found by looking every second; empty if they are not.
func (w *Watcher) Polling() string { return w.why }

// Close ends the watching and waits for it.
func (w *Watcher) Close() error {
	w.once.Do(func() {
		close(w.quit)
		if w.inotify != nil {
			_ = w.inotify.Close() // wakes the reader
		}
	})
	w.worker.Wait()
	return nil
}

// send reports false when the watcher was closed.
func (w *Watcher) send(c Change) bool {
	select {
	case w.events <- c:
		return true
	case <-w.quit:
		return false
	}
}

func (w *Watcher) read() {
	defer close(w.events)
	buf := make([]byte, 64<<10)
	for {
		n, err := w.inotify.Read(buf)
		if err != nil {
			return // closed
		}
		for raw := buf[:n]; len(raw) >= unix.SizeofInotifyEvent; {
			mask := binary.NativeEndian.Uint32(raw[4:])
			size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(raw[12:]))
			name, _, _ := bytes.Cut(raw[unix.SizeofInotifyEvent:size], []byte{0})
			raw = raw[size:]
			c := Change{
				Name:    string(name),
				Renamed: mask&unix.IN_MOVED_TO != 0,
				Dir:     mask&unix.IN_ISDIR != 0,
				Rescan:  mask&unix.IN_Q_OVERFLOW != 0,
				Gone:    mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0,
			}
			if c.Gone {
				w.send(Change{Gone: true})
				return
			}
			if c.Name != private && !w.send(c) {
				return
			}
		}
	}
}

// seenEntry is what a poll compares.
type seenEntry struct {
	id  identity
	dir bool
}

// look lists a directory; the entry "" is the directory itself.
func look(dir string) (map[string]seenEntry, error) {
	self, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !self.IsDir() {
		return nil, fmt.Errorf("it is a file: %w", unix.ENOTDIR)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	st := identify(self)
	found := map[string]seenEntry{"": {id: identity{dev: st.dev, ino: st.ino}}}
	for _, e := range entries {
		if e.Name() == private {
			continue
		}
		if info, err := e.Info(); err == nil {
			found[e.Name()] = seenEntry{id: identify(info), dir: e.IsDir()}
		}
	}
	return found, nil
}

// poll finds changes by comparing. An entry that was there under another name has been renamed.
func (w *Watcher) poll(dir string, before map[string]seenEntry, tick <-chan time.Time) {
	defer close(w.events)
	for {
		select {
		case <-w.quit:
			return
		case <-tick:
		}
		now, err := look(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) || err == nil && now[""] != before[""] {
			w.send(Change{Gone: true})
			return
		}
		if err != nil {
			continue // it may pass
		}
		for _, c := range compare(before, now) {
			if !w.send(c) {
				return
			}
		}
		before = now
	}
}

func compare(before, now map[string]seenEntry) []Change {
	type inode struct{ dev, ino uint64 }
	names := map[inode]string{}
	for name, e := range before {
		names[inode{e.id.dev, e.id.ino}] = name
	}
	var changes []Change
	for name, e := range now {
		if before[name] == e {
			continue
		}
		old, known := names[inode{e.id.dev, e.id.ino}]
		_, still := now[old]
		changes = append(changes, Change{Name: name, Dir: e.dir, Renamed: known && old != name && !still})
	}
	return changes
}
