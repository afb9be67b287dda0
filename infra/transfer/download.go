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
	"path/filepath"
	"strings"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// restorePrefix names the temporary directories of restores under way, below dir/.reprieve.
const restorePrefix = "restore-"

// Download puts the checkpoint of m into dir: all of it into a temporary directory first, each file
// verified while it is written, then renamed into place in one step. What is there under that name
// already is moved to dir/.reprieve/quarantine, never deleted. key says where the data of a file lies.
//
// Errors: handlers.ErrRotten (a size or digest that is not the manifest's, or missing data, also on
// a second reading), ErrPermanent (a manifest that names files outside its unit), ErrInvalid (dir
// cannot be written), ErrUnavailable (try again). After an error dir is as it was.
func Download(ctx context.Context, store blob.Store, key func(handlers.File) string, m handlers.Manifest, dir string) error {
	if err := check(m); err != nil {
		return err
	}
	private := filepath.Join(dir, ".reprieve")
	if err := os.MkdirAll(private, 0o755); err != nil {
		return local(err)
	}
	tmp, err := os.MkdirTemp(private, restorePrefix)
	if err != nil {
		return local(err)
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	root, err := os.OpenRoot(tmp) // no path of a manifest leads out of it
	if err != nil {
		return local(err)
	}
	defer func() { _ = root.Close() }()
	for _, f := range m.Files {
		err := fetch(ctx, store, key(f), f, root)
		if errors.Is(err, handlers.ErrRotten) {
			err = fetch(ctx, store, key(f), f, root)
		}
		if err != nil {
			return fmt.Errorf("download %s: %w", f.Path, err)
		}
	}
	return place(tmp, private, dir, m.Unit)
}

// Verify reads all data of m and compares it, without keeping it. Errors as of Download.
func Verify(ctx context.Context, store blob.Store, key func(handlers.File) string, m handlers.Manifest) error {
	if err := check(m); err != nil {
		return err
	}
	for _, f := range m.Files {
		err := read(ctx, store, key(f), f, io.Discard)
		if errors.Is(err, handlers.ErrRotten) {
			err = read(ctx, store, key(f), f, io.Discard)
		}
		if err != nil {
			return fmt.Errorf("verify %s: %w", f.Path, err)
		}
	}
	return nil
}

// CleanRestores removes what a restore that was killed left in dir.
func CleanRestores(dir string) error {
	private := filepath.Join(dir, ".reprieve")
	entries, err := os.ReadDir(private)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return local(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), restorePrefix) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(private, e.Name())); err != nil {
			return local(err)
		}
	}
	return nil
}

// check refuses a manifest whose files would not all lie at or below its unit, each at a place of its own.
func check(m handlers.Manifest) error {
	bad := func(name, why string) error {
		return fmt.Errorf("%w: the manifest of checkpoint %s names %q, %s: it is not restored", handlers.ErrPermanent, m.Ref(), name, why)
	}
	if !filepath.IsLocal(m.Unit) || m.Unit != path.Base(m.Unit) || m.Unit == "." || m.Unit == ".reprieve" || strings.ContainsAny(m.Unit, "\x00\\") {
		return bad(m.Unit, "which is no name of a checkpoint")
	}
	files := map[string]bool{}
	for _, f := range m.Files {
		switch {
		case strings.ContainsAny(f.Path, "\x00\\") || !filepath.IsLocal(f.Path) || path.Clean(f.Path) != f.Path:
			return bad(f.Path, "which is no relative path")
		case f.Path != m.Unit && !strings.HasPrefix(f.Path, m.Unit+"/"):
			return bad(f.Path, "which is outside of "+m.Unit)
		case files[f.Path]:
			return bad(f.Path, "twice")
		case f.Size < 0:
			return bad(f.Path, "with a negative size")
		}
		files[f.Path] = true
	}
	if len(files) == 0 {
		return bad(m.Unit, "without a file")
	}
	for name := range files {
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if files[parent] {
				return bad(parent, "both as a file and as a directory")
			}
		}
	}
	return nil
}

func fetch(ctx context.Context, store blob.Store, key string, f handlers.File, root *os.Root) (err error) {
	if err := root.MkdirAll(path.Dir(f.Path), 0o755); err != nil {
		return local(err)
	}
	out, err := root.OpenFile(f.Path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return local(err)
	}
	defer func() {
		if closeErr := out.Close(); err == nil && closeErr != nil {
			err = local(closeErr)
		}
	}()
	if err := read(ctx, store, key, f, out); err != nil {
		return err
	}
	if err := out.Sync(); err != nil {
		return local(err)
	}
	if err := out.Chmod(os.FileMode(f.Mode).Perm() | 0o400); err != nil {
		return local(err)
	}
	if err := root.Chtimes(f.Path, time.Time{}, f.MTime); err != nil {
		return local(err)
	}
	return nil
}

// read copies one object to w and compares it with what f says.
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
		return fmt.Errorf("%w: %d bytes instead of %d", handlers.ErrRotten, info.Size, f.Size)
	}
	digest := sha256.New()
	to := &localWriter{w: w}
	from := &storeReader{ctx: ctx, r: io.LimitReader(body, f.Size+1)} // one more shows that there is more
	if _, err := io.CopyBuffer(io.MultiWriter(to, digest), from, make([]byte, 1<<20)); err != nil {
		if to.err != nil {
			return local(to.err)
		}
		return blob.Unavailable(ctx, "read", err)
	}
	if got := hex.EncodeToString(digest.Sum(nil)); got != f.SHA256 {
		return fmt.Errorf("%w: its digest is %s instead of %s", handlers.ErrRotten, got, f.SHA256)
	}
	return nil
}

// place renames the unit from tmp into dir, moving what is in its way aside, and makes it durable.
func place(tmp, private, dir, unit string) error {
	target := filepath.Join(dir, unit)
	if _, err := os.Lstat(target); err == nil {
		aside := filepath.Join(private, "quarantine", time.Now().UTC().Format("20060102T150405.000000000Z"))
		if err := os.MkdirAll(aside, 0o755); err != nil {
			return local(err)
		}
		if err := os.Rename(target, filepath.Join(aside, unit)); err != nil {
			return local(err)
		}
	}
	if err := os.Rename(filepath.Join(tmp, unit), target); err != nil {
		return local(err)
	}
	d, err := os.Open(dir)
	if err != nil {
		return local(err)
	}
	err = d.Sync()
	_ = d.Close()
	if err != nil {
		return local(err)
	}
	return nil
}

// local is an error of the directory, not of the store: another try does not mend it.
func local(err error) error {
	return fmt.Errorf("%w: the checkpoint directory cannot be written (free space, or give another one): %w", handlers.ErrInvalid, err)
}

// localWriter remembers the error of its writer, to tell it from the store's.
type localWriter struct {
	w   io.Writer
	err error
}

func (l *localWriter) Write(p []byte) (int, error) {
	n, err := l.w.Write(p)
	l.err = err
	return n, err
}

// storeReader ends soon after ctx does; bodies of a store need not.
type storeReader struct {
	ctx context.Context
	r   io.Reader
}

func (s *storeReader) Read(p []byte) (int, error) {
	if err := context.Cause(s.ctx); err != nil {
		return 0, err
	}
	return s.r.Read(p)
}
