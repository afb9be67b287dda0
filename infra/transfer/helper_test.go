package transfer_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
	"github.com/reprieve-dev/reprieve/infra/transfer"
)

const prefix = "jobs/j/checkpoints/1-500/data"

func key(f handlers.File) string { return prefix + "/" + f.Path }

// store counts what is done to the store below it and disturbs it.
type store struct {
	blob.Store
	gets, puts int
	get        func(n int, key string, body io.ReadCloser, info blob.Info, err error) (io.ReadCloser, blob.Info, error)
	put        func(n int, body io.Reader) (io.Reader, error)
}

func (s *store) Get(ctx context.Context, key string) (io.ReadCloser, blob.Info, error) {
	s.gets++
	body, info, err := s.Store.Get(ctx, key)
	if s.get == nil {
		return body, info, err
	}
	return s.get(s.gets, key, body, info, err)
}

func (s *store) Put(ctx context.Context, key string, body io.Reader, size int64, cond blob.Cond) (blob.Info, error) {
	s.puts++
	if s.put != nil {
		changed, err := s.put(s.puts, body)
		if err != nil {
			return blob.Info{}, err
		}
		body = changed
	}
	return s.Store.Put(ctx, key, body, size, cond)
}

// readerFunc is a body that the test makes up.
type readerFunc func(p []byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// content is n bytes that differ from file to file and from block to block.
func content(seed string, n int) []byte {
	data := bytes.Repeat([]byte(seed+"|"), n/(len(seed)+1)+1)[:n]
	for i := 0; i < n; i += 4096 {
		data[i] = byte(i >> 12)
	}
	return data
}

// write puts files into dir, with modes and times of their own.
func write(t *testing.T, dir string, files map[string][]byte) {
	t.Helper()
	age := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	for name, data := range files {
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, data, 0o600))
		must(t, os.Chmod(path, []fs.FileMode{0o644, 0o600, 0o755}[len(name)%3]))
		must(t, os.Chtimes(path, age, age.Add(time.Duration(len(name))*time.Minute)))
	}
}

func sources(dir string, names []string) []transfer.Source {
	var list []transfer.Source
	for _, name := range names {
		list = append(list, transfer.Source{Path: name, Open: func() (*os.File, error) { return os.Open(filepath.Join(dir, name)) }})
	}
	return list
}

// upload writes files somewhere, uploads them and returns their manifest.
func upload(t *testing.T, s blob.Store, unit string, files map[string][]byte) handlers.Manifest {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, files)
	var names []string
	for name := range tree(t, dir) {
		if !strings.HasSuffix(name, "/") {
			names = append(names, name)
		}
	}
	got, err := transfer.Upload(t.Context(), s, prefix, sources(dir, names))
	must(t, err)
	return handlers.Manifest{Format: 1, Job: "j", Attempt: 1, Step: 500, Unit: unit, Files: got}
}

// entry is what a test compares of a file.
type entry struct {
	Data  string
	Mode  fs.FileMode
	MTime time.Time
}

// tree is everything below dir by relative path; directories end with a slash and have no times.
func tree(t *testing.T, dir string) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			found[filepath.ToSlash(name)+"/"] = entry{}
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		found[filepath.ToSlash(name)] = entry{Data: string(data), Mode: info.Mode(), MTime: info.ModTime().UTC()}
		return err
	}))
	delete(found, "./")
	return found
}

// wantUntouched compares dir with what it was; only an empty .reprieve may have come.
func wantUntouched(t *testing.T, dir string, before map[string]entry) {
	t.Helper()
	after := tree(t, dir)
	for name := range before {
		if after[name] != before[name] {
			t.Errorf("%s is not what it was", name)
		}
	}
	for name := range after {
		if _, ok := before[name]; !ok && name != ".reprieve/" {
			t.Errorf("%s was left behind", name)
		}
	}
}

func wantClass(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("error: got %v, want %v", err, want)
	}
	if want == handlers.ErrUnavailable && (errors.Is(err, handlers.ErrRotten) || handlers.Class(err) != want) {
		t.Errorf("error: got %v, want it to be only unavailable", err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
