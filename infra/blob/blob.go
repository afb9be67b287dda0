// Package blob is the one storage port: named byte objects with conditional writes.
//
// Adapters live in one folder each (file, mem, s3); every one passes the suite in
// infra/blob/blobtest. The package knows nothing about jobs or checkpoints; infra/catalog does.
package blob

import (
	"context"
	"io"
	"time"
)

// Version names one content of one key, as the store itself names it (an ETag, a generation).
// It is opaque; two versions of a key compare with ==. The empty Version is no version.
type Version string

// Info describes one object.
type Info struct {
	Key     string
	Size    int64     // bytes
	Version Version   // may be empty in a listing
	ModTime time.Time // the storage's clock, never the client's
}

// Cond is the condition of a Put. The zero value always writes.
type Cond struct {
	// Absent: write only if the key does not exist (create-only).
	Absent bool
	// Version: write only if the key's current version is this one (compare-and-swap). A missing key
	// has no version, so that is ErrConflict too. Empty means no condition: never take it from a listing
	// without looking.
	Version Version
}

// Page is one page of a listing.
type Page struct {
	Objects []Info    // ordered by key, bytewise
	More    bool      // there may be keys behind the last one (then Objects is not empty): ask again with after = its key
	Now     time.Time // the storage's clock when the page was made; ages are Now - ModTime
}

// Store is what every storage system has to offer. All methods are safe for concurrent use by
// any number of processes. Errors wrap the classes of handlers/errors.go: ErrInvalid for a key
// that CheckKey refuses and a body of another size than announced, ErrNotFound, ErrConflict for a
// condition that did not hold (nothing was written), ErrPermanent for what a person has to put right
// (no such bucket, access denied), ErrUnavailable for everything else (a write may or may not have
// taken effect). A cancelled context ends every method soon, with an error that wraps
// context.Cause(ctx); a Put ends when its body's Read returns.
type Store interface {
	// Get opens an object. The caller closes the reader. What is read is one whole version,
	// never a mixture, even when the key is overwritten meanwhile.
	Get(ctx context.Context, key string) (io.ReadCloser, Info, error)

	// Put writes size bytes from body under key if cond holds, and makes them durable before it
	// returns. A body that fails, or has fewer or more than size bytes, leaves nothing visible.
	// Of N concurrent Puts with the same Version, or with Absent, exactly one succeeds.
	Put(ctx context.Context, key string, body io.Reader, size int64, cond Cond) (Info, error)

	// Stat describes an object without reading it.
	Stat(ctx context.Context, key string) (Info, error)

	// List returns up to limit objects (1 to 1000) whose keys begin with prefix and sort behind after.
	List(ctx context.Context, prefix, after string, limit int) (Page, error)

	// Delete removes a key. Deleting what does not exist succeeds. It is unconditional, because
	// some stores ignore conditions on DELETE: safety rests on Put alone.
	Delete(ctx context.Context, key string) error
}
