package blobtest

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

// putAll writes small objects, sixteen at a time.
func putAll(t *testing.T, s blob.Store, keys []string) {
	t.Helper()
	const workers = 16
	parallel(workers, func(i int) {
		for n := i; n < len(keys); n += workers {
			if _, err := blob.PutBytes(t.Context(), s, keys[n], []byte(keys[n]), blob.Cond{Absent: true}); err != nil {
				t.Errorf("Put(%q): %v", keys[n], err)
			}
		}
	})
	if t.Failed() {
		t.FailNow()
	}
}

func pageKeys(page blob.Page) []string {
	keys := make([]string, len(page.Objects))
	for i, info := range page.Objects {
		keys[i] = info.Key
	}
	return keys
}

func listPages(t *testing.T, s blob.Store) {
	var keys []string
	for i := range 2300 {
		keys = append(keys, fmt.Sprintf("pages/%02d/%04d", i/100, i))
	}
	putAll(t, s, keys)
	put(t, s, "pages-before", nil, blob.Cond{})
	put(t, s, "pages0behind", nil, blob.Cond{})

	if got := list(t, s, "pages/"); !slices.Equal(got, keys) {
		t.Errorf("All yields %d keys, want the %d written, in order", len(got), len(keys))
	}
	for _, c := range []struct {
		after    string
		limit    int
		from, to int
		more     bool
	}{
		{"", 1000, 0, 1000, true},
		{keys[999], 1000, 1000, 2000, true},
		{keys[1999], 1000, 2000, 2300, false},
		{keys[1299], 1000, 1300, 2300, false}, // exactly one page left
		{keys[1298], 1000, 1299, 2299, true},
		{keys[49], 7, 50, 57, true},
		{keys[49], 1, 50, 51, true},
		{keys[2299], 10, 2300, 2300, false},
	} {
		page, err := s.List(t.Context(), "pages/", c.after, c.limit)
		wantNil(t, "List", err)
		got, want := pageKeys(page), keys[c.from:c.to]
		if !slices.Equal(got, want) || (c.more && !page.More) {
			t.Errorf("List(after %q, limit %d) has %d keys, more %v; want %d, more %v", c.after, c.limit, len(got), page.More, len(want), c.more)
		}
	}
	for _, limit := range []int{-1, 0, 1001} {
		_, err := s.List(t.Context(), "", "", limit)
		wantClass(t, fmt.Sprintf("List with limit %d", limit), err, handlers.ErrInvalid)
	}
}

func listSelection(t *testing.T, s blob.Store) {
	keys := []string{"a-b", "a.c", "a/b", "a/b-c/d", "a/b.d/e", "a/bc", "a/c/d/e/f", "a0", "b", "ba/a", "live/job-1/1-0", "live/job-1/2-0", "live/job-10/1-0", "live/job.x/1-0", "z/é", "z/漢"}
	keys[2] = "a/b~" // "a/b" is a directory nowhere, but sort order needs a name near it
	slices.Sort(keys)
	putAll(t, s, keys)
	afters := []string{"", "a", "a-", "a-b", "a/", "a/b", "a/b-c", "a/b-c/", "a/b-c/d", "a/b-c/dd", "a/b.", "a/c/d/e", "a/c/d/f", "a/c/zz", "a00", "live/job-1/1-0", "live/job-1/9", "live/job-10", "z/é", "z/漢", "zz", "~"}
	prefixes := []string{"", "a", "a/", "a/b", "a/b-", "a/b-c/", "a/c/d/", "b", "ba", "ba/", "live/", "live/job-1", "live/job-1/", "live/job-1/1", "live/job-2", "nothing/here", "z/", "z/é", "/", "a//", "../", "./a", ".reprieve", ".reprieve/", ".reprieve/tmp/"}
	for _, prefix := range prefixes {
		for _, after := range afters {
			var want []string
			for _, key := range keys {
				if strings.HasPrefix(key, prefix) && key > after {
					want = append(want, key)
				}
			}
			page, err := s.List(t.Context(), prefix, after, 1000)
			wantNil(t, "List", err)
			if got := pageKeys(page); !slices.Equal(got, want) || page.More {
				t.Errorf("List(%q, after %q) = %q, more %v; want %q", prefix, after, got, page.More, want)
			}
		}
		var paged []string
		for after, more := "", true; more; {
			page, err := s.List(t.Context(), prefix, after, 2)
			wantNil(t, "List", err)
			if paged = append(paged, pageKeys(page)...); len(paged) > len(keys) || (page.More && len(page.Objects) == 0) {
				t.Fatalf("List(%q) by twos does not end", prefix)
			}
			if more = page.More; more {
				after = paged[len(paged)-1]
			}
		}
		if want := list(t, s, prefix); !slices.Equal(paged, want) {
			t.Errorf("List(%q) by twos = %q, want %q", prefix, paged, want)
		}
	}
}

func oddKeys(t *testing.T, s blob.Store) {
	keys := []string{
		"odd/a b", "odd/ leading", "odd/trailing ", "odd/a+b", "odd/a%2Fb", "odd/100%", "odd/%", "odd/a?b", "odd/a#b", "odd/a&b=c;d",
		`odd/"double"`, "odd/'single'", "odd/`back`", `odd/back\slash`, "odd/<xml>&amp;", "odd/{}[]|^~", "odd/$!*()@:,", "odd/é precomposed", "odd/e\u0301 combining",
		"odd/漢字", "odd/😀", "odd/\u00a0nbsp", "odd/\u200bzero width", "odd/...", "odd/.hidden", "odd/a..b", "odd/-dash", "odd/.reprieve",
		"odd/a-b", "odd/a/b", "odd/a0", "odd/" + strings.Repeat("x", 255), "odd/" + strings.Repeat("é", 127) + "y",
		strings.Repeat(strings.Repeat("d", 99)+"/", 8) + strings.Repeat("e", 100), // 900 bytes
	}
	putAll(t, s, keys)
	slices.Sort(keys)
	if got := list(t, s, ""); !slices.Equal(got, keys) {
		t.Errorf("List = %q\nwant %q", got, keys)
	}
	for i, key := range keys {
		info := wantContent(t, s, key, []byte(key))
		page, err := s.List(t.Context(), key, "", 1)
		wantNil(t, "List", err)
		if got := pageKeys(page); len(got) != 1 || got[0] != key {
			t.Errorf("List(%q) = %q, want the key itself", key, got)
		}
		if listed := page.Objects; len(listed) == 1 && listed[0].Version != "" && listed[0].Version != info.Version {
			t.Errorf("List(%q) has version %q, want %q or none", key, listed[0].Version, info.Version)
		}
		page, err = s.List(t.Context(), "", key, 1)
		wantNil(t, "List", err)
		if got := pageKeys(page); i+1 < len(keys) && (len(got) != 1 || got[0] != keys[i+1]) {
			t.Errorf("List(after %q) = %q, want %q", key, got, keys[i+1])
		}
		// Longer ones are created and deleted only: servers that keep objects as files may need room
		// for a temporary name beside them.
		if len(path.Base(key)) <= 200 {
			put(t, s, key, []byte("swapped"), blob.Cond{Version: info.Version})
			wantContent(t, s, key, []byte("swapped"))
		}
		wantNil(t, "Delete", s.Delete(t.Context(), key))
		wantMissing(t, s, key)
	}
}

func refusedKeys(t *testing.T, s blob.Store) {
	for _, key := range []string{
		"", "/", "/a", "a/", "a//b", ".", "..", "a/.", "a/..", "./a", "../a", "a/../b", "a/./b", "a\x00b", "a\nb", "a\tb", "a\x7fb", "a\u0085b", "a\ufffeb", "a\xffb",
		".reprieve", ".reprieve/tmp/x", "a/" + strings.Repeat("x", 256), strings.Repeat(strings.Repeat("d", 99)+"/", 8) + strings.Repeat("e", 101),
	} {
		_, _, err := s.Get(t.Context(), key)
		wantClass(t, fmt.Sprintf("Get(%q)", key), err, handlers.ErrInvalid)
		_, err = s.Stat(t.Context(), key)
		wantClass(t, fmt.Sprintf("Stat(%q)", key), err, handlers.ErrInvalid)
		_, err = blob.PutBytes(t.Context(), s, key, []byte("x"), blob.Cond{})
		wantClass(t, fmt.Sprintf("Put(%q)", key), err, handlers.ErrInvalid)
		wantClass(t, fmt.Sprintf("Delete(%q)", key), s.Delete(t.Context(), key), handlers.ErrInvalid)
	}
	if keys := list(t, s, ""); len(keys) != 0 {
		t.Errorf("keys left: %q", keys)
	}
}

func times(t *testing.T, s blob.Store) {
	const tolerance = time.Minute
	near := func(what string, got, want time.Time) {
		t.Helper()
		if d := got.Sub(want).Abs(); d > tolerance {
			t.Errorf("%s: %v and %v are %v apart, want at most %v", what, got, want, d, tolerance)
		}
	}
	empty, err := s.List(t.Context(), "", "", 1)
	wantNil(t, "List", err)
	written := put(t, s, "k", []byte("x"), blob.Cond{})
	page, err := s.List(t.Context(), "", "", 1)
	wantNil(t, "List", err)
	seen, err := s.Stat(t.Context(), "k")
	wantNil(t, "Stat", err)
	near("the clock of an empty page and of a later one", empty.Now, page.Now)
	near("ModTime of Put and the clock", written.ModTime, page.Now)
	near("ModTime of Stat and the clock", seen.ModTime, page.Now)
	near("ModTime in the page and the clock", page.Objects[0].ModTime, page.Now)
}
