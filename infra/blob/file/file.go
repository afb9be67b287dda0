// Package file is a directory as a store: the object "a/b" is the plain file root/a/b, so any
// program can read it where it lies. Any number of processes may share the directory.
//
// Everything is written and fsynced as a temporary file under root/.reprieve/tmp first. Create-only
// is link(2), which needs no lock. What replaces or removes a file holds a flock meanwhile, one of
// 256 under root/.reprieve/lock chosen by a hash of the key; a killed process gives its lock back, a
// stopped one makes others fail at their deadline. The package needs a file system with working
// hard links and flock: it is not for FUSE mounts of buckets. Files put into the directory by hand
// are objects like any other; links and special files are not.
package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

const (
	bufferSize  = 1 << 20 // bytes, for copying a body
	staleAge    = 24 * time.Hour
	maxAttempts = 100 // at a Put whose directory others keep removing; each attempt is a lost race
)

// Store implements blob.Store.
type Store struct {
	root string

	mu     sync.Mutex
	synced map[string]dirID // directories whose path down from root is known to be durable
}

// Open makes the directory root a store, creating it if needed, and removes temporary files that
// dead processes left more than a day ago. A root that is a file or cannot be written is ErrInvalid,
// a full disk ErrUnavailable.
func Open(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("find the directory %s: %w: %w", root, handlers.ErrInvalid, err)
	}
	s := &Store{root: root, synced: map[string]dirID{}}
	for _, dir := range []string{s.tmpDir(), s.lockDir()} {
		if err := makeDir(dir); err != nil {
			return nil, s.openError(err)
		}
	}
	now, err := s.clock()
	if err != nil {
		return nil, s.openError(err)
	}
	probe, err := s.newTemp()
	if err != nil {
		return nil, s.openError(err)
	}
	defer probe.discard()
	if err := probe.tryLink(); err != nil {
		return nil, fmt.Errorf("the file system under the store %s has no hard links (%w): use another directory, or a mounted bucket's own URL: %w", s.root, errnoOf(err), handlers.ErrInvalid)
	}
	if err := s.removeStale(now); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *Store) openError(err error) error {
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("the store %s is a file, or lies below one: give --store a directory: %w", s.root, handlers.ErrInvalid)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("the store directory %s cannot be written (%w): change its permissions or give --store another one: %w", s.root, errnoOf(err), handlers.ErrInvalid)
	}
	return s.failed("open the store "+s.root, err)
}

// failed gives an error of a system call its class and, for a full disk, a sentence.
func (s *Store) failed(doing string, err error) error {
	if !errors.Is(err, handlers.ErrUnavailable) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) {
		return fmt.Errorf("%s: the disk under the store %s is full (%w): free space there: %w", doing, s.root, errnoOf(err), handlers.ErrUnavailable)
	}
	return blob.Unavailable(context.Background(), doing, err)
}

func errnoOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func (s *Store) removeStale(now time.Time) error {
	entries, err := os.ReadDir(s.tmpDir())
	if err != nil {
		return s.failed("look for old temporary files", err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && now.Sub(info.ModTime()) > staleAge {
			err = os.Remove(filepath.Join(s.tmpDir(), entry.Name()))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s.failed("remove an old temporary file", err)
		}
	}
	return nil
}

func (s *Store) tmpDir() string         { return filepath.Join(s.root, ".reprieve", "tmp") }
func (s *Store) lockDir() string        { return filepath.Join(s.root, ".reprieve", "lock") }
func (s *Store) path(key string) string { return filepath.Join(s.root, filepath.FromSlash(key)) }

// clock is the storage's own time: what it stamps on a file touched now. (On NFS that is the server.)
func (s *Store) clock() (time.Time, error) {
	path := filepath.Join(s.root, ".reprieve", "clock")
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return time.Time{}, err
	}
	defer f.Close()
	touch := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, path, touch, 0); err != nil {
		return time.Time{}, &fs.PathError{Op: "touch", Path: path, Err: err}
	}
	info, err := f.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime(), nil
}

func (s *Store) Get(ctx context.Context, key string) (io.ReadCloser, blob.Info, error) {
	doing := fmt.Sprintf("get %q", key)
	if err := begin(ctx, doing, key); err != nil {
		return nil, blob.Info{}, err
	}
	// Neither follow a link nor wait for the writer of a pipe.
	f, err := os.OpenFile(s.path(key), os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, blob.Info{}, s.missing(doing, err)
	}
	// The descriptor stays on this inode, which no Put ever writes to: what is read is one version.
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		f.Close()
		return nil, blob.Info{}, s.missing(doing, err)
	}
	return f, describe(key, info), nil
}

func (s *Store) Stat(ctx context.Context, key string) (blob.Info, error) {
	doing := fmt.Sprintf("stat %q", key)
	if err := begin(ctx, doing, key); err != nil {
		return blob.Info{}, err
	}
	info, err := lstatFile(s.path(key))
	if err != nil {
		return blob.Info{}, s.missing(doing, err)
	}
	return describe(key, info), nil
}

func (s *Store) Delete(ctx context.Context, key string) error {
	doing := fmt.Sprintf("delete %q", key)
	if err := begin(ctx, doing, key); err != nil {
		return err
	}
	lock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer lock.Close()
	path := s.path(key)
	info, err := lstatFile(path)
	if absent(err) {
		return nil
	}
	if err == nil {
		err = lock.raise(info.ModTime())
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err == nil {
		err = s.syncNearest(filepath.Dir(path))
	}
	if err != nil {
		return s.failed(doing, err)
	}
	s.prune(filepath.Dir(path))
	return nil
}

// prune removes dir and its parents as long as they are empty. Failing is fine: an empty directory
// is no object.
func (s *Store) prune(dir string) {
	for ; dir != s.root && os.Remove(dir) == nil; dir = filepath.Dir(dir) {
		s.forget(dir)
	}
}

func begin(ctx context.Context, doing, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return blob.Unavailable(ctx, doing, ctx.Err())
	}
	return nil
}

func (s *Store) missing(doing string, err error) error {
	if absent(err) {
		return fmt.Errorf("%s: %w", doing, handlers.ErrNotFound)
	}
	return s.failed(doing, err)
}

// absent says whether err means that there is no such object: nothing there, a file where the key
// has a directory, a link.
func absent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}

// lstatFile is os.Lstat for which only regular files exist.
func lstatFile(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "stat", Path: path, Err: fs.ErrNotExist}
	}
	return info, err
}

func describe(key string, info fs.FileInfo) blob.Info {
	return blob.Info{Key: key, Size: info.Size(), Version: versionOf(info), ModTime: info.ModTime()}
}

// versionOf names a content by inode, mtime and size. It never comes back to a key, because a file
// that may get a freed inode again also gets a later mtime than all that were there (see Put).
func versionOf(info fs.FileInfo) blob.Version {
	return blob.Version(fmt.Sprintf("%x-%x-%x", info.Sys().(*syscall.Stat_t).Ino, info.ModTime().UnixNano(), info.Size()))
}
