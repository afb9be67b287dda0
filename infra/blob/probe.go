package blob

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

const (
	identityKey    = "store.json"
	identityFormat = 1
	cleanupTime    = 5 * time.Second
)

// Probe writes, overwrites and deletes one object under probe/ to find out whether the store obeys
// conditions. One that does not is ErrPermanent.
func Probe(ctx context.Context, store Store) (err error) {
	key := "probe/" + rand.Text()
	defer func() {
		// Also after a cancelled or ambiguous write.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
		defer cancel()
		err = errors.Join(err, store.Delete(ctx, key))
	}()
	first, err := PutBytes(ctx, store, key, []byte("1"), Cond{Absent: true})
	if err != nil {
		return fmt.Errorf("probe the store: %w", err)
	}
	if err := wantConflict(ctx, store, key, Cond{Absent: true}, "If-None-Match"); err != nil {
		return err
	}
	if _, err := PutBytes(ctx, store, key, []byte("2"), Cond{Version: first.Version}); err != nil {
		return fmt.Errorf("probe the store: overwrite the current version: %w", err)
	}
	return wantConflict(ctx, store, key, Cond{Version: first.Version}, "If-Match")
}

func wantConflict(ctx context.Context, store Store, key string, cond Cond, header string) error {
	_, err := PutBytes(ctx, store, key, []byte("3"), cond)
	switch {
	case errors.Is(err, handlers.ErrConflict):
		return nil
	case err != nil:
		return fmt.Errorf("probe the store: %w", err)
	}
	return fmt.Errorf("the store ignores conditional writes (%s): two nodes could claim one job; use a store that supports them: %w", header, handlers.ErrPermanent)
}

type identity struct {
	Format int    `json:"format"`
	UID    string `json:"uid"`
}

// Identify returns the uid of the store, which the document store.json keeps. At a store's first use
// there is none: the store is probed, and the document created with a uid from newUID. Of several
// first users all get the same uid. A format that this program does not know is ErrPermanent.
func Identify(ctx context.Context, store Store, newUID func() string) (uid string, err error) {
	uid, err = readIdentity(ctx, store)
	if !errors.Is(err, handlers.ErrNotFound) {
		return uid, err
	}
	if err := Probe(ctx, store); err != nil {
		return "", err
	}
	uid = newUID()
	data, err := json.Marshal(identity{Format: identityFormat, UID: uid})
	if err != nil {
		return "", fmt.Errorf("encode %s: %w: %w", identityKey, handlers.ErrInvalid, err)
	}
	_, err = PutBytes(ctx, store, identityKey, append(data, '\n'), Cond{Absent: true})
	if errors.Is(err, handlers.ErrConflict) { // somebody else was first
		return readIdentity(ctx, store)
	}
	if err != nil {
		return "", err
	}
	return uid, nil
}

func readIdentity(ctx context.Context, store Store) (string, error) {
	data, _, err := ReadAll(ctx, store, identityKey)
	if err != nil {
		return "", err
	}
	var doc identity
	if err := json.Unmarshal(data, &doc); err != nil {
		return "", fmt.Errorf("%s is not a document of Reprieve (%w): give --store a place of its own: %w", identityKey, err, handlers.ErrPermanent)
	}
	if doc.Format != identityFormat {
		return "", fmt.Errorf("%s has format %d and this version of reprieve knows format %d: use a version that knows format %d: %w",
			identityKey, doc.Format, identityFormat, doc.Format, handlers.ErrPermanent)
	}
	if doc.UID == "" {
		return "", fmt.Errorf("%s has no uid: put the original document back: %w", identityKey, handlers.ErrPermanent)
	}
	return doc.UID, nil
}
