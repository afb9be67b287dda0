package file

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/infra/blob"
)

// keyLock is one held lock. The mtime of its file is the floor: no version below or at it may appear
// again under a key of this lock, because a version that had that mtime was deleted.
type keyLock struct {
	*os.File
	floor time.Time
}

func (s *Store) lockPath(key string) string {
	h := fnv.New32a()
	h.Write([]byte(key))
	return filepath.Join(s.lockDir(), fmt.Sprintf("%02x", h.Sum32()&0xff))
}

// lock waits for the key's lock until ctx ends. Closing the file releases it.
func (s *Store) lock(ctx context.Context, key string) (*keyLock, error) {
	f, err := os.OpenFile(s.lockPath(key), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, s.failed(fmt.Sprintf("open the lock of %q", key), err)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for wait := time.Millisecond; ; wait = min(2*wait, 32*time.Millisecond) {
		select {
		case <-ctx.Done():
			f.Close()
			return nil, blob.Unavailable(ctx, fmt.Sprintf("wait for the lock %s, which another process holds", f.Name()), ctx.Err())
		case <-timer.C:
		}
		if ctx.Err() != nil { // select chooses at random when both are ready
			continue
		}
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			f.Close()
			return nil, s.failed(fmt.Sprintf("lock %s", f.Name()), err)
		}
		timer.Reset(wait)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, s.failed(fmt.Sprintf("lock %s", f.Name()), err)
	}
	return &keyLock{File: f, floor: info.ModTime()}, nil
}

// floor reads the floor of a key without its lock.
func (s *Store) floor(key string) (time.Time, error) {
	info, err := os.Stat(s.lockPath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

// raise lifts the floor to at least mod.
func (l *keyLock) raise(mod time.Time) error {
	if !mod.After(l.floor) {
		return nil
	}
	return os.Chtimes(l.Name(), time.Time{}, mod)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// syncNearest makes a removal below dir durable, in the nearest directory that was not removed too.
func (s *Store) syncNearest(dir string) error {
	for {
		err := syncDir(dir)
		if dir == s.root || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		dir = filepath.Dir(dir)
	}
}

// makeDir is os.MkdirAll that makes what it creates durable.
func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o777)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := makeDir(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o777)
	}
	if err == nil {
		return syncDir(filepath.Dir(dir))
	}
	if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
		return nil
	}
	if errors.Is(err, fs.ErrExist) {
		return &fs.PathError{Op: "mkdir", Path: dir, Err: unix.ENOTDIR}
	}
	return err
}

// dirID tells a directory from a later one with the same name.
type dirID struct {
	inode uint64
	born  unix.StatxTimestamp
}

// maxSynced bounds the memory of a process that lives long; forgetting only costs an fsync.
const maxSynced = 10_000

// syncPath makes the entries of dir durable, and dir itself and its parents unless this process
// has already seen to that. (It is not enough that whoever creates a directory does so: another
// process may use it before that one has got so far.)
func (s *Store) syncPath(dir string) error {
	var fresh []func()
	err := syncDir(dir)
	for ; err == nil && dir != s.root; dir = filepath.Dir(dir) {
		var st unix.Statx_t
		if err = unix.Statx(unix.AT_FDCWD, dir, 0, unix.STATX_INO|unix.STATX_BTIME, &st); err != nil {
			break
		}
		if st.Mask&unix.STATX_BTIME != 0 {
			id := dirID{st.Ino, st.Btime}
			if s.isSynced(dir, id) {
				break
			}
			fresh = append(fresh, func() { s.remember(dir, id) })
		}
		err = syncDir(filepath.Dir(dir))
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil // whoever removed the directory removed what was to be made durable
	}
	if err != nil {
		return err
	}
	for _, remember := range fresh {
		remember()
	}
	return nil
}

func (s *Store) isSynced(dir string, id dirID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced[dir] == id
}

func (s *Store) remember(dir string, id dirID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.synced) >= maxSynced {
		clear(s.synced)
	}
	s.synced[dir] = id
}

func (s *Store) forget(dir string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.synced, dir)
}
