package transfer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// Download puts the checkpoint of m into dir: all of it into a temporary directory first, each file
// verified while it is written, then renamed into place in one step. What is there under that name
// already is moved to dir/.reprieve/quarantine, never deleted. key says where the data of a file lies.
// Nothing outside dir is touched, whatever m and the links in dir say. Two downloads into one
// directory do not disturb each other; the later one is what stays.
//
// Errors: handlers.ErrRotten (a size or digest that is not the manifest's, or missing data, also on
// a second reading), ErrPermanent (a manifest that names files outside its unit), ErrInvalid (dir
// cannot be written), ErrUnavailable (try again). After an error dir is as it was, but that the unit
// may be there, whole, when only its durability is in doubt.
func Download(ctx context.Context, store blob.Store, key func(handlers.File) string, m handlers.Manifest, dir string) (err error) {
	if err := check(m); err != nil {
		return err
	}
	defer func() {
		var failed *dirError
		if errors.As(err, &failed) {
			err = failed.explain(dir, m)
		}
	}()
	t, err := open(dir)
	if err != nil {
		return err
	}
	defer t.close()
	tmp, err := t.temp()
	if err != nil {
		return err
	}
	defer func() { _ = t.root.RemoveAll(tmp) }()
	for _, f := range m.Files {
		if err := t.fetch(ctx, store, key(f), f, tmp); err != nil {
			return fmt.Errorf("download %s: %w", f.Path, err)
		}
	}
	return t.place(tmp, m)
}

// Verify reads all data of m and compares it, without keeping it. Errors as of Download.
func Verify(ctx context.Context, store blob.Store, key func(handlers.File) string, m handlers.Manifest) error {
	if err := check(m); err != nil {
		return err
	}
	for _, f := range m.Files {
		if err := twice(func() error { return read(ctx, store, key(f), f, io.Discard) }); err != nil {
			return fmt.Errorf("verify %s: %w", f.Path, err)
		}
	}
	return nil
}

// twice gives data that does not verify another chance: it may have been spoilt on its way.
func twice(read func() error) error {
	err := read()
	if errors.Is(err, handlers.ErrRotten) {
		return read()
	}
	return err
}

// fetch writes one file below tmp, with its mode and mtime, durably.
func (t *target) fetch(ctx context.Context, store blob.Store, key string, f handlers.File, tmp string) (err error) {
	name := path.Join(tmp, f.Path)
	if err := t.root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return &dirError{err}
	}
	out, err := t.root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return &dirError{err}
	}
	defer func() {
		if closeErr := out.Close(); err == nil && closeErr != nil {
			err = &dirError{closeErr}
		}
	}()
	err = twice(func() error {
		if err := rewind(out); err != nil {
			return &dirError{err}
		}
		return read(ctx, store, key, f, &dirWriter{out})
	})
	if err != nil {
		return err
	}
	if err := out.Chmod(os.FileMode(f.Mode).Perm()); err != nil {
		return &dirError{err}
	}
	if err := t.root.Chtimes(name, time.Time{}, f.MTime); err != nil {
		return &dirError{err}
	}
	if err := out.Sync(); err != nil {
		return &dirError{err}
	}
	return nil
}

func rewind(f *os.File) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return f.Truncate(0)
}

// read copies one object to w and compares it with what f says. It never writes more than f says.
func read(ctx context.Context, store blob.Store, key string, f handlers.File, w io.Writer) error {
	body, info, err := store.Get(ctx, key)
	if errors.Is(err, handlers.ErrNotFound) {
		return fmt.Errorf("%w: its data is missing", handlers.ErrRotten)
	}
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	if info.Size != f.Size {
		return fmt.Errorf("%w: it has %d bytes instead of %d", handlers.ErrRotten, info.Size, f.Size)
	}
	digest := sha256.New()
	from := io.LimitReader(&storeReader{ctx, body}, f.Size)
	// The writer is hidden, so that it cannot take the copying, and with it the buffer, into its own hands.
	n, err := io.CopyBuffer(struct{ io.Writer }{io.MultiWriter(w, digest)}, from, make([]byte, max(1, min(f.Size, 1<<20))))
	if err != nil {
		return err
	}
	if n != f.Size {
		return fmt.Errorf("%w: it ended after %d of %d bytes", handlers.ErrRotten, n, f.Size)
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != f.SHA256 {
		return fmt.Errorf("%w: its SHA-256 is %s instead of %s", handlers.ErrRotten, got, f.SHA256)
	}
	return nil
}

// storeReader ends with ctx, and gives what goes wrong on the way the class of something to try again.
type storeReader struct {
	ctx  context.Context
	body io.Reader
}

func (r *storeReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, blob.Unavailable(r.ctx, "read it", err)
	}
	n, err := r.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = blob.Unavailable(r.ctx, "read it", err)
	}
	return n, err
}

// dirWriter tells errors of the directory from those of the store.
type dirWriter struct{ w io.Writer }

func (d *dirWriter) Write(p []byte) (int, error) {
	n, err := d.w.Write(p)
	if err != nil {
		err = &dirError{err}
	}
	return n, err
}
