package file

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

func (s *Store) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (blob.Info, error) {
	if err := blob.CheckPut(key, size, cond); err != nil {
		return blob.Info{}, err
	}
	doing := fmt.Sprintf("put %q", key)
	t, err := s.newTemp()
	if err != nil {
		return blob.Info{}, s.failed(doing, err)
	}
	defer t.discard()
	if err := t.fill(ctx, body, size); err != nil {
		return blob.Info{}, s.failed(doing, err)
	}
	if cond.Absent {
		err = s.create(ctx, key, t)
	} else {
		err = s.replace(ctx, key, t, cond.Version)
	}
	if err != nil {
		return blob.Info{}, s.failed(doing, err)
	}
	return describe(key, t.info), nil
}

// create gives the temporary file its name unless the name is taken. The floor is read after the
// temporary file got its inode: had the inode belonged to a deleted version, that one is below.
func (s *Store) create(ctx context.Context, key string, t *temp) error {
	floor, err := s.floor(key)
	if err == nil {
		err = t.after(floor)
	}
	if err == nil {
		err = s.link(ctx, key, t)
	}
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("it exists: %w", handlers.ErrConflict)
	}
	return err
}

func (s *Store) replace(ctx context.Context, key string, t *temp, want blob.Version) error {
	lock, err := s.lock(ctx, key)
	if err != nil {
		return err
	}
	defer lock.Close()
	path := s.path(key)
	for {
		current, err := lstatFile(path)
		exists := err == nil
		if err != nil && !absent(err) {
			return err
		}
		if want != "" && (!exists || versionOf(current) != want) {
			return fmt.Errorf("version %q is not the current one: %w", want, handlers.ErrConflict)
		}
		floor := lock.floor
		if exists && current.ModTime().After(floor) {
			floor = current.ModTime()
		}
		if err := t.after(floor); err != nil {
			return err
		}
		if exists { // and stays, because the lock is held
			if err := os.Rename(t.path, path); err != nil {
				return err
			}
			return s.syncPath(filepath.Dir(path))
		}
		// A create-only Put holds no lock: renaming here could bury its version unseen.
		if err := s.link(ctx, key, t); !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
}

// link names the temporary file key and makes the name durable. It returns fs.ErrExist when an
// object has the name.
func (s *Store) link(ctx context.Context, key string, t *temp) error {
	path := s.path(key)
	dir := filepath.Dir(path)
	for range maxAttempts {
		if ctx.Err() != nil {
			return blob.Unavailable(ctx, "name the file", ctx.Err())
		}
		if err := os.MkdirAll(dir, 0o777); err != nil {
			switch {
			case errors.Is(err, syscall.ENOTDIR):
				return fmt.Errorf("a part of its path is an object: rename one of them: %w", handlers.ErrInvalid)
			case errors.Is(err, fs.ErrNotExist): // pruned in between
				continue
			}
			return err
		}
		err := os.Link(t.path, path)
		switch {
		case err == nil:
			return s.syncPath(dir)
		case errors.Is(err, fs.ErrNotExist):
			continue
		case !errors.Is(err, fs.ErrExist):
			return err
		}
		there, statErr := os.Lstat(path)
		switch {
		case absent(statErr): // deleted in between
			return err
		case statErr != nil:
			return statErr
		case os.SameFile(there, t.info): // NFS: the answer to the link got lost and it was sent again
			return s.syncPath(dir)
		case !there.IsDir():
			return err
		}
		if err := syscall.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			if errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("it is the directory of other objects: rename one of them: %w", handlers.ErrInvalid)
			}
			return err
		}
	}
	return fmt.Errorf("its directory was removed %d times meanwhile: try again: %w", maxAttempts, handlers.ErrUnavailable)
}

// temp is a file below .reprieve/tmp that holds what is being written.
type temp struct {
	file *os.File
	path string
	info fs.FileInfo // of the finished content
}

func (s *Store) newTemp() (*temp, error) {
	path := filepath.Join(s.tmpDir(), rand.Text())
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666)
	if err != nil {
		return nil, err
	}
	return &temp{file: f, path: path}, nil
}

// discard is called on every way out. After a rename there is nothing left to remove.
func (t *temp) discard() {
	t.file.Close()
	os.Remove(t.path)
}

func (t *temp) tryLink() error {
	second := t.path + "-link"
	if err := os.Link(t.path, second); err != nil {
		return err
	}
	return os.Remove(second)
}

func (t *temp) fill(ctx context.Context, body io.Reader, size int64) error {
	exact := blob.Exact(ctx, body, size)
	// Hidden behind a plain writer, because *os.File would choose a small buffer of its own.
	if _, err := io.CopyBuffer(struct{ io.Writer }{t.file}, exact, make([]byte, min(bufferSize, size+1))); err != nil {
		return err
	}
	return t.sync()
}

func (t *temp) sync() error {
	err := t.file.Sync()
	if err == nil {
		t.info, err = t.file.Stat()
	}
	return err
}

// after moves the mtime behind floor, by as little as the file system can tell apart.
func (t *temp) after(floor time.Time) error {
	for step := time.Nanosecond; !t.info.ModTime().After(floor); step *= 10 {
		if step > time.Hour {
			return fmt.Errorf("the file system does not keep modification times: use another one for the store: %w", handlers.ErrPermanent)
		}
		if err := os.Chtimes(t.path, time.Time{}, floor.Add(step)); err != nil {
			return err
		}
		if err := t.sync(); err != nil {
			return err
		}
	}
	return nil
}
