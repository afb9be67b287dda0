package blob_test

import (
	"errors"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/blob"
)

func TestCheckKey(t *testing.T) {
	long := strings.Repeat(strings.Repeat("d", 99)+"/", 8)
	for _, c := range []struct {
		key  string
		want string // a part of the error; empty: a good key
	}{
		{"a", ""},
		{"jobs/j/checkpoints/1-200/data/0/model.pt", ""},
		{"a b/+%?#&\"'\\/é/e\u0301/漢", ""},
		{"a/.reprieve", ""},
		{".reprieve2/a", ""},
		{"...", ""},
		{strings.Repeat("x", 255), ""},
		{long + strings.Repeat("e", 100), ""},
		{"", "is empty"},
		{long + strings.Repeat("e", 101), "has 901 bytes: shorten it to 900"},
		{"a\xff", "not valid UTF-8"},
		{"a\nb", "control character U+000A"},
		{"a\x7f", "control character U+007F"},
		{"a\u0085", "control character U+0085"},
		{"a\uffff", "control character U+FFFF"},
		{"/a", "empty segment"},
		{"a/", "empty segment"},
		{"a//b", "empty segment"},
		{"./a", `segment "."`},
		{"a/..", `segment ".."`},
		{"a/" + strings.Repeat("x", 256), "segment of 256 bytes: shorten it to 255"},
		{".reprieve/tmp", "begins with .reprieve"},
	} {
		got := blob.CheckKey(c.key)
		switch {
		case c.want == "" && got != nil:
			t.Errorf("CheckKey(%q) = %v, want nil", c.key, got)
		case c.want != "" && (!errors.Is(got, handlers.ErrInvalid) || !strings.Contains(got.Error(), c.want)):
			t.Errorf("CheckKey(%q) = %v, want invalid with %q", c.key, got, c.want)
		}
	}
}

// A key that passes stays inside the directory of a file store and is the only spelling of its path.
func FuzzCheckKey(f *testing.F) {
	for _, seed := range []string{"a/b", "../x", "a/../..", "", "/", ".reprieve/x", "a\x00", "a\xffb", strings.Repeat("x/", 500)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if blob.CheckKey(key) != nil {
			return
		}
		joined := path.Join("/root", key)
		if got, want := joined, "/root/"+key; got != want {
			t.Errorf("%q is the path %q, want %q", key, got, want)
		}
		if strings.HasPrefix(joined+"/", "/root/.reprieve/") || !utf8.ValidString(key) || strings.ContainsRune(key, 0) || len(key) > 900 {
			t.Errorf("%q passes", key)
		}
	})
}
