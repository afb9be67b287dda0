package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/reprieve-dev/reprieve/handlers"
)

// What a notice asks for.
const (
	ActionCheckpoint     = "checkpoint"
	ActionCheckpointStop = "checkpoint_and_stop"
	ActionNone           = "none" // what was asked before is withdrawn
)

// Notice is what trainers are told.
type Notice struct {
	Seq      uint64    `json:"seq"` // grows by one with each notice, from 1; set by Announce
	Kind     string    `json:"kind"`
	Deadline time.Time `json:"deadline,omitzero"`
	Action   string    `json:"action"`
}

// Saved is a trainer's word that a checkpoint is complete.
type Saved struct {
	Path    string             `json:"path"` // absolute, or relative to the checkpoint directory
	Step    *int64             `json:"step"` // nil: not said
	Metrics map[string]float64 `json:"metrics"`
}

// Progress is how far a trainer is.
type Progress struct {
	Step    int64    `json:"step"`
	Epoch   float64  `json:"epoch"`
	Samples int64    `json:"samples"`
	Loss    *float64 `json:"loss"` // nil: not said
}

// Callbacks receive what trainers say; each may be called from several goroutines at once, and a
// nil one is left out. The trainer waits for the answer: they must not block for long.
type Callbacks struct {
	Saved    func(Saved)
	Progress func(Progress)
	Done     func()
}

const (
	maxWait        = 60 * time.Second // longest long poll; a longer wait is cut
	maxBody        = 64 << 10         // bytes
	maxSocketPath  = 107              // sun_path is 108 bytes with its closing zero
	bodyTimeout    = 10 * time.Second
	subscribedFor  = time.Minute
	closeAnswersIn = time.Second
)

// Socket is REPRIEVE_SOCKET: HTTP over a Unix socket, between the supervisor and any number of
// trainers on this machine.
//
//	GET  /notice?wait=30s&after=SEQ   200 and a Notice whose seq is above SEQ, or 204 after wait
//	POST /saved POST /progress POST /done   204
//
// Errors are JSON: {"error": "..."}.
//
// A client passes the seq of the last notice it got (0, or nothing, at first). It gets every
// notice that still holds, however late it asks: a notice is replaced only by a later one that
// asks for as much, or withdrawn by one with the action none, which clients that have acted
// already get as well.
type Socket struct {
	path    string
	says    Callbacks
	server  *http.Server
	serving sync.WaitGroup

	mu      sync.Mutex
	seq     uint64
	current []Notice // those that hold, by seq; at most one of each action
	wake    chan struct{}
	closed  bool
	polls   map[int]*poller // by process
}

type poller struct {
	open int
	last time.Time
}

type peerKey struct{}

// Listen opens the socket at path. A directory that is missing is made, for this user only; a
// socket that nobody serves any more is replaced.
//
// Errors: ErrInvalid for a path that is too long or is taken by another file, ErrConflict when
// another process serves it, ErrUnavailable.
func Listen(path string, says Callbacks) (*Socket, error) {
	if len(path) > maxSocketPath {
		return nil, fmt.Errorf("%w: socket path %s has %d bytes, and the system allows %d: choose a shorter --state-dir", handlers.ErrInvalid, path, len(path), maxSocketPath)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("%w: make the directory of socket %s: %w; choose another --state-dir", handlers.ErrInvalid, path, err)
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("%w: listen on socket %s: %w; choose another --state-dir", handlers.ErrInvalid, path, err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, fmt.Errorf("%w: protect socket %s: %w", handlers.ErrUnavailable, path, err)
	}
	s := &Socket{path: path, says: says, wake: make(chan struct{}), polls: map[int]*poller{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /notice", s.notice)
	mux.HandleFunc("POST /saved", s.saved)
	mux.HandleFunc("POST /progress", s.progress)
	mux.HandleFunc("POST /done", s.done)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/notice":
			w.Header().Set("Allow", http.MethodGet)
		case "/saved", "/progress", "/done":
			w.Header().Set("Allow", http.MethodPost)
		default:
			refuse(w, http.StatusNotFound, "there is no "+r.URL.Path+"; use GET /notice, POST /saved, POST /progress or POST /done")
			return
		}
		refuse(w, http.StatusMethodNotAllowed, r.URL.Path+" takes "+w.Header().Get("Allow")+", not "+r.Method)
	})
	s.server = &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: bodyTimeout,
		IdleTimeout:       2 * maxWait,
		MaxHeaderBytes:    16 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, peerKey{}, peerOf(c))
		},
	}
	s.serving.Go(func() { _ = s.server.Serve(l) })
	return s, nil
}

// removeStale makes way for a new socket.
func removeStale(path string) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%w: %s is there already and is no socket: move it away, or choose another --state-dir", handlers.ErrInvalid, path)
	}
	c, err := net.Dial("unix", path)
	if err == nil {
		_ = c.Close()
		return fmt.Errorf("%w: another supervisor serves socket %s", handlers.ErrConflict, path)
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("%w: look at socket %s: %w", handlers.ErrUnavailable, path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: remove the old socket %s: %w", handlers.ErrUnavailable, path, err)
	}
	return nil
}

// peerOf returns the pid at the other end, 0 if it is not in our pid namespace.
func peerOf(c net.Conn) int {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return 0
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// Path is where the socket is.
func (s *Socket) Path() string { return s.path }

// Close lets waiting clients go with 204, ends the server, waits for it, and removes the file.
func (s *Socket) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.wake)
	}
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeAnswersIn)
	defer cancel()
	if s.server.Shutdown(ctx) != nil {
		_ = s.server.Close()
	}
	s.serving.Wait()
	return nil
}

// Announce gives the notice its seq, wakes all waiting clients and returns it. It does not wait
// for them.
func (s *Socket) Announce(n Notice) Notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	n.Seq = s.seq
	kept := s.current[:0:0]
	for _, earlier := range s.current {
		if n.Action == ActionCheckpoint && earlier.Action == ActionCheckpointStop {
			kept = append(kept, earlier)
		}
	}
	s.current = append(kept, n)
	if !s.closed {
		close(s.wake)
		s.wake = make(chan struct{})
	}
	return n
}

// Subscribers counts the living processes that wait for a notice, or asked for one within the
// last minute.
func (s *Socket) Subscribers() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for pid, p := range s.polls {
		gone := pid != 0 && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
		if p.open == 0 && (gone || time.Since(p.last) > subscribedFor) {
			delete(s.polls, pid)
			continue
		}
		n++
	}
	return n
}

func (s *Socket) polling(pid, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.polls[pid]
	if p == nil {
		p = &poller{}
		s.polls[pid] = p
	}
	p.open += by
	p.last = time.Now()
}

// next returns the first notice above after, or the channel that is closed when there may be one.
func (s *Socket) next(after uint64) (n Notice, wake <-chan struct{}, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.current {
		if n.Seq > after {
			return n, nil, false
		}
	}
	return Notice{}, s.wake, s.closed
}

func (s *Socket) notice(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	var wait time.Duration
	var after uint64
	var err error
	if v := query.Get("wait"); v != "" {
		if wait, err = time.ParseDuration(v); err != nil || wait < 0 {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("wait=%q is not a duration; write for example wait=30s", v))
			return
		}
	}
	if v := query.Get("after"); v != "" {
		if after, err = strconv.ParseUint(v, 10, 64); err != nil {
			refuse(w, http.StatusBadRequest, fmt.Sprintf("after=%q is not a number; pass the seq of the last notice, or 0", v))
			return
		}
	}
	pid, _ := r.Context().Value(peerKey{}).(int)
	s.polling(pid, 1)
	defer s.polling(pid, -1)
	timeout := time.NewTimer(min(wait, maxWait))
	defer timeout.Stop()
	for {
		n, wake, closed := s.next(after)
		if n.Seq > 0 {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(n)
			return
		}
		if closed || wait == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		select {
		case <-wake:
		case <-timeout.C:
			w.WriteHeader(http.StatusNoContent)
			return
		case <-r.Context().Done():
			return
		}
	}
}

func (s *Socket) saved(w http.ResponseWriter, r *http.Request) {
	var v Saved
	if !accept(w, r, &v) {
		return
	}
	if v.Path == "" {
		refuse(w, http.StatusBadRequest, "path is missing: give the checkpoint's path")
		return
	}
	if v.Step != nil && *v.Step < 0 {
		refuse(w, http.StatusBadRequest, "step is negative: give the training step, or leave it out")
		return
	}
	if s.says.Saved != nil {
		s.says.Saved(v)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Socket) progress(w http.ResponseWriter, r *http.Request) {
	var v Progress
	if !accept(w, r, &v) {
		return
	}
	if v.Step < 0 || v.Samples < 0 || v.Epoch < 0 {
		refuse(w, http.StatusBadRequest, "step, epoch and samples cannot be negative")
		return
	}
	if s.says.Progress != nil {
		s.says.Progress(v)
	}
	w.WriteHeader(http.StatusNoContent)
}

func (s *Socket) done(w http.ResponseWriter, r *http.Request) {
	if !accept(w, r, &struct{}{}) {
		return
	}
	if s.says.Done != nil {
		s.says.Done()
	}
	w.WriteHeader(http.StatusNoContent)
}

// accept reads a JSON object; an empty body is an empty object. False: it has answered already.
func accept(w http.ResponseWriter, r *http.Request, into any) bool {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		refuse(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", maxBody))
		return false
	case err != nil:
		refuse(w, http.StatusBadRequest, "the body ended early")
		return false
	}
	_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
	if len(raw) == 0 {
		return true
	}
	if err := json.Unmarshal(raw, into); err != nil {
		refuse(w, http.StatusBadRequest, "the body is not the JSON expected (NaN and Infinity are not JSON; leave them out): "+err.Error())
		return false
	}
	return true
}

func refuse(w http.ResponseWriter, status int, sentence string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": sentence})
}
