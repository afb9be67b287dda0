package supervise_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reprieve-dev/reprieve/handlers"
	"github.com/reprieve-dev/reprieve/infra/supervise"
)

// client is a trainer at the socket.
type client struct {
	t    *testing.T
	http *http.Client
}

func listen(t *testing.T, says supervise.Callbacks) (*supervise.Socket, client) {
	t.Helper()
	sock, err := supervise.Listen(filepath.Join(t.TempDir(), "s", "r.sock"), says)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sock.Close(); err != nil {
			t.Error(err)
		}
	})
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", sock.Path())
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return sock, client{t, &http.Client{Transport: transport}}
}

func (c client) do(method, path, body string) (int, string) {
	req, err := http.NewRequest(method, "http://reprieve"+path, strings.NewReader(body))
	if err != nil {
		c.t.Error(err)
		return 0, ""
	}
	resp, err := c.http.Do(req)
	if err != nil {
		c.t.Error(err)
		return 0, ""
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, strings.TrimSpace(string(raw))
}

func (c client) get(path string) (int, string) { return c.do("GET", path, "") }

func TestNoticeReachesEveryClient(t *testing.T) {
	sock, c := listen(t, supervise.Callbacks{})
	if status, _ := c.get("/notice"); status != 204 {
		t.Errorf("no notice yet: got %d, want 204", status)
	}
	const clients = 20
	deadline := time.Date(2026, 11, 3, 4, 5, 6, 0, time.UTC)
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			if status, body := c.get("/notice?wait=30s&after=0"); status != 200 ||
				body != `{"seq":1,"kind":"preempt","deadline":"2026-11-03T04:05:06Z","action":"checkpoint_and_stop"}` {
				t.Errorf("got %d %s", status, body)
			}
		})
	}
	eventually(t, "subscribed", func() bool { return sock.Subscribers() == 1 }) // one process, however many connections
	n := sock.Announce(supervise.Notice{Kind: "preempt", Deadline: deadline, Action: supervise.ActionCheckpointStop})
	if n.Seq != 1 {
		t.Errorf("seq: got %d, want 1", n.Seq)
	}
	group.Wait()
	// Who comes late gets it at once, and who has it waits for the next.
	if status, body := c.get("/notice?wait=30s"); status != 200 || !strings.Contains(body, `"seq":1`) {
		t.Errorf("late: got %d %s", status, body)
	}
	if status, body := c.get("/notice?wait=1ms&after=1"); status != 204 || body != "" {
		t.Errorf("nothing new: got %d %s", status, body)
	}
}

func TestNoticesThatHold(t *testing.T) {
	const soft, stop, none = supervise.ActionCheckpoint, supervise.ActionCheckpointStop, supervise.ActionNone
	for _, tc := range []struct {
		announced []string
		fresh     []string // what a client gets that asks from 0
	}{
		{[]string{soft}, []string{"1 checkpoint"}},
		{[]string{soft, soft}, []string{"2 checkpoint"}},
		{[]string{soft, stop}, []string{"2 checkpoint_and_stop"}},
		{[]string{stop, soft}, []string{"1 checkpoint_and_stop", "2 checkpoint"}},
		{[]string{stop, soft, soft}, []string{"1 checkpoint_and_stop", "3 checkpoint"}},
		{[]string{stop, none}, []string{"2 none"}},
		{[]string{stop, none, soft}, []string{"3 checkpoint"}},
	} {
		sock, c := listen(t, supervise.Callbacks{})
		for _, action := range tc.announced {
			sock.Announce(supervise.Notice{Kind: "k", Action: action})
		}
		var got []string
		for after := "0"; ; {
			status, body := c.get("/notice?after=" + after)
			if status == 204 {
				break
			}
			var seq, action string
			if _, err := fmt.Sscanf(strings.NewReplacer(`{"seq":`, "", `,"kind":"k","action":"`, " ", `"}`, "").Replace(body), "%s %s", &seq, &action); err != nil {
				t.Fatal(body, err)
			}
			got = append(got, seq+" "+action)
			after = seq
		}
		if !cmp.Equal(got, tc.fresh) {
			t.Errorf("after %v: got %v, want %v", tc.announced, got, tc.fresh)
		}
	}
}

func TestClientsNeverMissANotice(t *testing.T) {
	sock, c := listen(t, supervise.Callbacks{})
	const last = 200
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			for after := uint64(0); after < last; {
				_, body := c.get(fmt.Sprintf("/notice?wait=30s&after=%d", after))
				var seq uint64
				if _, err := fmt.Sscanf(body, `{"seq":%d`, &seq); err != nil || seq <= after {
					t.Errorf("after %d: got %q", after, body)
					return
				}
				after = seq
			}
		})
	}
	for range last {
		sock.Announce(supervise.Notice{Action: supervise.ActionCheckpoint})
	}
	group.Wait()
}

func TestWhatTrainersSay(t *testing.T) {
	var said []string
	_, c := listen(t, supervise.Callbacks{
		Saved: func(v supervise.Saved) {
			said = append(said, fmt.Sprintf("saved %s %d %v", v.Path, *v.Step, v.Metrics))
		},
		Progress: func(v supervise.Progress) {
			said = append(said, fmt.Sprintf("at %d %v %d %v", v.Step, v.Epoch, v.Samples, *v.Loss))
		},
		Done: func() { said = append(said, "done") },
	})
	for _, tc := range []struct {
		method, path, body string
		status             int
		sentence           string
	}{
		{"POST", "/saved", `{"path":"a.ckpt","step":7,"metrics":{"loss":0.5}}`, 204, ""},
		{"POST", "/progress", `{"step":8,"epoch":1.5,"samples":64,"loss":2,"unknown":1}`, 204, ""},
		{"POST", "/done", ``, 204, ""},
		{"POST", "/done", `{}`, 204, ""},
		{"POST", "/saved", `{"step":7}`, 400, "path is missing"},
		{"POST", "/saved", `{"path":"x","step":-1}`, 400, "step is negative"},
		{"POST", "/saved", `{"path":"x","metrics":{"loss":NaN}}`, 400, "NaN"},
		{"POST", "/saved", `[]`, 400, "not the JSON expected"},
		{"POST", "/progress", `{"step":-1}`, 400, "negative"},
		{"POST", "/progress", `{"step":"x"}`, 400, "step"},
		{"POST", "/progress", `{"x":"` + strings.Repeat("x", 70_000) + `"}`, 413, "larger than"},
		{"GET", "/notice?wait=soon", "", 400, "wait=30s"},
		{"GET", "/notice?wait=-1s", "", 400, "wait=30s"},
		{"GET", "/notice?after=x", "", 400, "after="},
		{"GET", "/notice?after=-1", "", 400, "after="},
		{"POST", "/notice", "", 405, "/notice takes GET, not POST"},
		{"GET", "/done", "", 405, "/done takes POST, not GET"},
		{"GET", "/", "", 404, "use GET /notice"},
		{"GET", "/notices", "", 404, "there is no /notices"},
	} {
		status, body := c.do(tc.method, tc.path, tc.body)
		if status != tc.status || !strings.Contains(body, tc.sentence) || status >= 400 && !strings.HasPrefix(body, `{"error":"`) {
			t.Errorf("%s %s %.60s: got %d %s, want %d %s", tc.method, tc.path, tc.body, status, body, tc.status, tc.sentence)
		}
	}
	if want := []string{"saved a.ckpt 7 map[loss:0.5]", "at 8 1.5 64 2", "done", "done"}; !cmp.Equal(said, want) {
		t.Errorf("got %q, want %q", said, want)
	}
}

func TestCloseLetsClientsGo(t *testing.T) {
	sock, c := listen(t, supervise.Callbacks{})
	answer := make(chan int, 1)
	go func() {
		status, _ := c.get("/notice?wait=60s")
		answer <- status
	}()
	eventually(t, "subscribed", func() bool { return sock.Subscribers() == 1 })
	if err := sock.Close(); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; got != 204 {
		t.Errorf("got %d, want 204", got)
	}
	if _, err := os.Stat(sock.Path()); !os.IsNotExist(err) {
		t.Errorf("the socket file is still there: %v", err)
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "r.sock")
	first, err := supervise.Listen(path, supervise.Callbacks{})
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	for at, want := range map[string]os.FileMode{filepath.Dir(path): 0o700 | os.ModeDir, path: 0o600 | os.ModeSocket} {
		if info, err := os.Stat(at); err != nil || info.Mode() != want {
			t.Errorf("mode of %s: got %v, %v, want %v", at, info.Mode(), err, want)
		}
	}
	if _, err := supervise.Listen(path, supervise.Callbacks{}); !errors.Is(err, handlers.ErrConflict) {
		t.Errorf("in use: got %v, want ErrConflict", err)
	}
	if _, err := supervise.Listen(filepath.Join(dir, strings.Repeat("x", 108)), supervise.Callbacks{}); !errors.Is(err, handlers.ErrInvalid) || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("too long: got %v, want ErrInvalid", err)
	}
	file := write(t, filepath.Join(dir, "file"), "precious")
	if _, err := supervise.Listen(file, supervise.Callbacks{}); !errors.Is(err, handlers.ErrInvalid) {
		t.Errorf("a file in its place: got %v, want ErrInvalid", err)
	}
	if _, err := supervise.Listen(filepath.Join(file, "r.sock"), supervise.Callbacks{}); !errors.Is(err, handlers.ErrInvalid) {
		t.Errorf("a file for a directory: got %v, want ErrInvalid", err)
	}
	// What a killed supervisor leaves is replaced.
	stale := filepath.Join(dir, "stale.sock")
	l, err := net.Listen("unix", stale)
	if err != nil {
		t.Fatal(err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = l.Close()
	second, err := supervise.Listen(stale, supervise.Callbacks{})
	if err != nil {
		t.Fatalf("stale: %v", err)
	}
	_ = second.Close()
}
