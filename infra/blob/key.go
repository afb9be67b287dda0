package blob

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	maxKey     = 900 // bytes; S3 allows 1024, the rest is left to the prefix of a store URL
	maxSegment = 255 // bytes; the longest file name of Linux file systems

	// MaxPage is the largest limit that List takes.
	MaxPage = 1000
)

// CheckKey returns ErrInvalid unless every store can hold key: 1 to 900 bytes of UTF-8 without
// control characters, made of segments of 1 to 255 bytes between single slashes, none of them "."
// or "..", the first one not ".reprieve" (the file store keeps its own files there).
//
// One rule is left to the callers: a key is never also the directory of another one ("a" beside
// "a/b"), because a file system cannot hold both.
func CheckKey(key string) error {
	refuse := func(why string) error {
		return fmt.Errorf("key %q %s: %w", key, why, handlers.ErrInvalid)
	}
	switch {
	case key == "":
		return refuse("is empty: name an object")
	case len(key) > maxKey:
		return refuse(fmt.Sprintf("has %d bytes: shorten it to %d", len(key), maxKey))
	case !utf8.ValidString(key):
		return refuse("is not valid UTF-8: encode it")
	}
	for _, r := range key {
		if unicode.IsControl(r) || r == '\uFFFE' || r == '\uFFFF' { // XML listings cannot carry them
			return refuse(fmt.Sprintf("has the control character %U: remove it", r))
		}
	}
	for i, segment := range strings.Split(key, "/") {
		switch {
		case segment == "":
			return refuse("has an empty segment: use single slashes, none at either end")
		case segment == "." || segment == "..":
			return refuse(fmt.Sprintf("has the segment %q: remove it", segment))
		case len(segment) > maxSegment:
			return refuse(fmt.Sprintf("has a segment of %d bytes: shorten it to %d", len(segment), maxSegment))
		case i == 0 && segment == ".reprieve":
			return refuse("begins with .reprieve, which is the file store's own: rename it")
		}
	}
	return nil
}

// CheckPut returns ErrInvalid for a Put that no store accepts.
func CheckPut(key string, size int64, cond Cond) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("put %q: size %d is negative: give the number of bytes: %w", key, size, handlers.ErrInvalid)
	}
	if cond.Absent && cond.Version != "" {
		return fmt.Errorf("put %q: absent and version %q exclude each other: give one condition: %w", key, cond.Version, handlers.ErrInvalid)
	}
	return nil
}

// CheckLimit returns ErrInvalid for a limit of List outside 1 to MaxPage.
func CheckLimit(limit int) error {
	if limit < 1 || limit > MaxPage {
		return fmt.Errorf("list limit %d is out of range: use 1 to %d: %w", limit, MaxPage, handlers.ErrInvalid)
	}
	return nil
}
