package file

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/reprieve-dev/reprieve/infra/blob"
)

func (s *Store) List(ctx context.Context, prefix, after string, limit int) (blob.Page, error) {
	if err := blob.CheckLimit(limit); err != nil {
		return blob.Page{}, err
	}
	doing := fmt.Sprintf("list %q", prefix)
	if ctx.Err() != nil {
		return blob.Page{}, blob.Unavailable(ctx, doing, ctx.Err())
	}
	w := walker{ctx: ctx, root: s.root, prefix: prefix, after: after, limit: limit}
	var err error
	if w.page.Now, err = s.clock(); err != nil {
		return blob.Page{}, s.failed(doing, err)
	}
	// No key has a directory that CheckKey refuses, so a prefix like "../" leads nowhere.
	dir := prefix[:strings.LastIndexByte(prefix, '/')+1]
	if dir == "" || blob.CheckKey(strings.TrimSuffix(dir, "/")) == nil {
		err = w.walk(dir)
	}
	if err != nil {
		return blob.Page{}, s.failed(doing, err)
	}
	return w.page, nil
}

// walker visits the keys behind after in bytewise order, and opens no directory without any.
type walker struct {
	ctx                 context.Context
	root, prefix, after string
	limit               int
	page                blob.Page
}

// walk visits a directory given as a key with a slash at its end, or "" for the root. It stops when
// the page is full and there is more.
func (w *walker) walk(dir string) error {
	if w.ctx.Err() != nil {
		return blob.Unavailable(w.ctx, "walk", w.ctx.Err())
	}
	entries, err := os.ReadDir(filepath.Join(w.root, dir))
	if absent(err) { // removed meanwhile
		return nil
	}
	if err != nil {
		return err
	}
	// A directory sorts as what its keys begin with: "a-b" is before "a/b".
	type child struct {
		key   string
		entry fs.DirEntry
	}
	children := make([]child, 0, len(entries))
	for _, entry := range entries {
		key := dir + entry.Name()
		if entry.IsDir() {
			key += "/"
		}
		if w.wanted(key, entry) {
			children = append(children, child{key, entry})
		}
	}
	slices.SortFunc(children, func(a, b child) int { return cmp.Compare(a.key, b.key) })
	for _, c := range children {
		if w.page.More {
			return nil
		}
		if c.entry.IsDir() {
			err = w.walk(c.key)
		} else {
			err = w.add(c.key, c.entry)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) wanted(key string, entry fs.DirEntry) bool {
	if blob.CheckKey(strings.TrimSuffix(key, "/")) != nil {
		return false
	}
	if entry.IsDir() {
		return (strings.HasPrefix(key, w.prefix) || strings.HasPrefix(w.prefix, key)) &&
			(key > w.after || strings.HasPrefix(w.after, key))
	}
	return entry.Type().IsRegular() && strings.HasPrefix(key, w.prefix) && key > w.after
}

func (w *walker) add(key string, entry fs.DirEntry) error {
	info, err := entry.Info()
	if absent(err) || (err == nil && !info.Mode().IsRegular()) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(w.page.Objects) == w.limit {
		w.page.More = true
		return nil
	}
	w.page.Objects = append(w.page.Objects, describe(key, info))
	return nil
}
