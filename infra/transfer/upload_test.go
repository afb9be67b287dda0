package transfer_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/blob/mem"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

func TestUploadDescribesWhatItPut(t *testing.T) {
	s := mem.New(nil)
	dir := t.TempDir()
	files := map[string][]byte{"step-5/model.bin": content("model", 9<<20), "step-5/empty": nil, "step-5/a/b c/é": []byte("x")}
	write(t, dir, files)
	names := []string{"step-5/model.bin", "step-5/empty", "step-5/a/b c/é"}
	got, err := transfer.Upload(t.Context(), s, prefix, sources(dir, names))
	must(t, err)
	var want []handlers.File
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		sum := sha256.Sum256(files[name])
		want = append(want, handlers.File{Path: name, Size: int64(len(files[name])), SHA256: hex.EncodeToString(sum[:]),
			Mode: uint32(info.Mode().Perm()), MTime: info.ModTime().UTC()})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for _, f := range got {
		data, _, err := blob.ReadAll(t.Context(), s, key(f))
		must(t, err)
		if string(data) != string(files[f.Path]) {
			t.Errorf("%s: the object is not the file", f.Path)
		}
	}
}

func TestUploadTwiceIsUploadOnce(t *testing.T) {
	s := mem.New(nil)
	dir := t.TempDir()
	write(t, dir, map[string][]byte{"c.pt": []byte("one")})
	first, err := transfer.Upload(t.Context(), s, prefix, sources(dir, []string{"c.pt"}))
	must(t, err)
	second, err := transfer.Upload(t.Context(), s, prefix, sources(dir, []string{"c.pt"}))
	must(t, err)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("(-first +second)\n%s", diff)
	}
}

// A file that is written to while it is read is no checkpoint, whatever the store made of it.
func TestUploadOfAFileThatChangesItsSize(t *testing.T) {
	for name, size := range map[string]int64{"shrinks": 1 << 20, "is emptied": 0, "grows": 5 << 20} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			write(t, dir, map[string][]byte{"c.pt": content("c", 4<<20)})
			s := &store{Store: mem.New(nil), put: func(_ int, body io.Reader) (io.Reader, error) {
				return body, os.Truncate(filepath.Join(dir, "c.pt"), size)
			}}
			got, err := transfer.Upload(t.Context(), s, prefix, sources(dir, []string{"c.pt"}))
			wantClass(t, err, handlers.ErrUnavailable)
			if got != nil {
				t.Errorf("got %+v beside the error", got)
			}
		})
	}
}

func TestUploadErrors(t *testing.T) {
	names := []string{"step-5/a", "step-5/b", "step-5/c"}
	dir := t.TempDir()
	write(t, dir, map[string][]byte{"step-5/a": []byte("a"), "step-5/b": content("b", 3<<20), "step-5/c": nil})
	down := errors.New("connection refused")
	for n := 1; n <= len(names); n++ {
		s := &store{Store: mem.New(nil), put: func(now int, body io.Reader) (io.Reader, error) {
			if now == n {
				return nil, errors.Join(handlers.ErrUnavailable, down)
			}
			return body, nil
		}}
		got, err := transfer.Upload(t.Context(), s, prefix, sources(dir, names))
		wantClass(t, err, handlers.ErrUnavailable)
		if !errors.Is(err, down) || got != nil {
			t.Errorf("put %d: got %+v, %v", n, got, err)
		}
		if s.puts != n {
			t.Errorf("put %d: got %d puts", n, s.puts)
		}
	}

	_, err := transfer.Upload(t.Context(), mem.New(nil), prefix, sources(dir, []string{"step-5/a", "step-5/rotated-away"}))
	wantClass(t, err, handlers.ErrUnavailable)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: got %v", err)
	}
}

// What no restore would take back is not uploaded.
func TestUploadRefuses(t *testing.T) {
	for name, path := range map[string]string{
		"no name": "", "absolute": "/etc/hostname", "climbing": "../x", "climbing later": "a/../../x", "dot": ".", "not clean": "a//b",
		"control character": "new\nline", "backslash": `a\b`, "not UTF-8": "a\xff", "long": strings.Repeat("x", 256), "ours": ".reprieve/quarantine/x",
		"a directory": "dir", "a pipe": "pipe",
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
			must(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
			s := &store{Store: mem.New(nil)}
			source := transfer.Source{Path: path, Open: func() (*os.File, error) {
				return os.OpenFile(filepath.Join(dir, path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
			}}
			_, err := transfer.Upload(t.Context(), s, prefix, []transfer.Source{source})
			wantClass(t, err, handlers.ErrInvalid)
			if s.puts > 0 {
				t.Error("it was put")
			}
		})
	}
}

func TestUploadIsCancelled(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, map[string][]byte{"a": content("a", 9<<20), "b": nil})
	cause := errors.New("the machine goes away")
	ctx, cancel := context.WithCancelCause(t.Context())
	read := 0
	s := &store{Store: mem.New(nil), put: func(_ int, body io.Reader) (io.Reader, error) {
		return readerFunc(func(p []byte) (int, error) {
			n, err := body.Read(p[:min(len(p), 64<<10)])
			if read += n; read > 1<<20 {
				cancel(cause)
			}
			return n, err
		}), nil
	}}
	_, err := transfer.Upload(ctx, s, prefix, sources(dir, []string{"a", "b"}))
	wantClass(t, err, handlers.ErrUnavailable)
	if !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause", err)
	}
	if s.puts != 1 || read > 2<<20 {
		t.Errorf("got %d puts and %d bytes after the cancellation", s.puts, read)
	}
}
