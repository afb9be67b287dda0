package handlers_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/handlers"
)

func TestClass(t *testing.T) {
	for _, c := range []struct{ err, want error }{
		{nil, nil},
		{errors.New("x"), handlers.ErrUnavailable},
		{fmt.Errorf("x: %w", handlers.ErrUnavailable), handlers.ErrUnavailable},
		{fmt.Errorf("x: %w", handlers.ErrInvalid), handlers.ErrInvalid},
		{fmt.Errorf("x: %w", handlers.ErrNotFound), handlers.ErrNotFound},
		{handlers.ErrSuperseded, handlers.ErrPermanent},
		{handlers.ErrEnded, handlers.ErrPermanent},
		{handlers.ErrRotten, handlers.ErrPermanent},
		{handlers.ErrHeld, handlers.ErrConflict},
		{handlers.ErrReserved, handlers.ErrConflict},
		{handlers.ErrIgnored, handlers.ErrIgnored},
	} {
		want(t, fmt.Sprint(c.err), handlers.Class(c.err), c.want)
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"a", "0", "resnet-50", "a.b", "a--b", strings.Repeat("a", 63)} {
		if err := handlers.CheckName(name); err != nil {
			t.Errorf("CheckName(%q) = %v", name, err)
		}
	}
	for _, name := range []string{"", "A", "a/b", "-a", "a-", ".", "..", "a.", "a b", "a\n", "é", strings.Repeat("a", 64)} {
		err := handlers.CheckName(name)
		wantClass(t, name, err, handlers.ErrInvalid)
	}
}

func TestDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{`"90s"`: 90 * time.Second, `"10m0s"`: 10 * time.Minute, `"0s"`: 0} {
		var d handlers.Duration
		if err := json.Unmarshal([]byte(text), &d); err != nil || time.Duration(d) != want {
			t.Errorf("%s is %v, error %v; want %v", text, time.Duration(d), err, want)
		}
	}
	for _, text := range []string{`"-1s"`, `"1"`, `""`, `"soon"`} {
		var d handlers.Duration
		wantClass(t, text, json.Unmarshal([]byte(text), &d), handlers.ErrInvalid)
	}
	data, err := json.Marshal(handlers.Backoff{Initial: handlers.Duration(90 * time.Second)})
	if got := string(data); err != nil || got != `{"initial":"1m30s"}` {
		t.Errorf("written as %s, error %v", got, err)
	}
}

func TestCurrent(t *testing.T) {
	for _, state := range states {
		j := record(state)
		live := state == handlers.Running || state == handlers.Preempting
		want(t, string(state)+": current", j.Current("me"), live)
		want(t, string(state)+": current without a claim", j.Current(""), false)
		want(t, string(state)+": an older claim", j.Current("c1"), false)
		reserved := state == handlers.Pending || state == handlers.Resuming
		want(t, string(state)+": claimed", j.Claimed("me"), !reserved)
		want(t, string(state)+": on its node, on an older one", [2]bool{j.RunsOn(n2), j.RunsOn(n1)}, [2]bool{!reserved, false})
	}
}
