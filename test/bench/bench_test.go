// Package bench measures what the README and the documents claim. It prints figures and asserts none:
// machines are noisy. Run it with `make bench`.
package bench

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/infra/metadata"
	"github.com/reprieve-dev/reprieve/test/harness"
)

func TestMain(m *testing.M) {
	code := m.Run()
	harness.Clean()
	os.Exit(code)
}

// BenchmarkNoticeToTrigger: from the metadata service's answer that has the notice until the trigger
// is delivered (the command's HTTP endpoint is called), 100 times. The service is polled every
// second; that wait comes on top, and is known.
func BenchmarkNoticeToTrigger(b *testing.B) {
	const rounds = 100
	standIn := metadata.NewStandIn("i-bench")
	var answered atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		standIn.ServeHTTP(w, r)
		if strings.HasSuffix(r.URL.Path, "spot/instance-action") {
			answered.Store(time.Now().UnixNano())
		}
	}))
	defer service.Close()
	delivered := make(chan time.Duration)
	command := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		delivered <- time.Duration(time.Now().UnixNano() - answered.Load())
	}))
	defer command.Close()
	dir := b.TempDir()
	p := harness.Start(b, []string{"REPRIEVE_LOG_FORMAT=text"}, harness.Reprieve(b), "run", "--job", "j", "--store", "file://"+filepath.Join(dir, "store"),
		"--checkpoint-dir", filepath.Join(dir, "c"), "--state-dir", dir, "--provider", "aws", "--metadata-endpoint", service.URL,
		"--on-notice", "keep", "--trigger", "http:"+command.URL, "--", "sh", "-c", "echo ready; sleep 600")
	p.WaitFor("(?m)^ready")
	var took []time.Duration
	for i := range rounds { // each deadline is another notice
		standIn.Interrupt("terminate", time.Now().Add(time.Hour+time.Duration(i)*10*time.Minute))
		took = append(took, <-delivered)
	}
	slices.Sort(took)
	fmt.Printf("notice answered to trigger delivered, %d rounds: p50 %s, p99 %s, max %s\n",
		rounds, took[rounds/2], took[rounds*99/100-1], took[rounds-1])
}

// BenchmarkIdle: CPU and memory of `reprieve run` around a command that does nothing, polling a
// metadata service every second and a heartbeat every 10 s.
func BenchmarkIdle(b *testing.B) {
	const window = 20 * time.Second
	dir := b.TempDir()
	server := httptest.NewServer(metadata.NewStandIn("i-idle"))
	defer server.Close()
	p := harness.Start(b, nil, harness.Reprieve(b), "run", "--job", "j", "--store", "file://"+filepath.Join(dir, "store"),
		"--checkpoint-dir", filepath.Join(dir, "c"), "--state-dir", dir, "--provider", "aws", "--metadata-endpoint", server.URL,
		"--", "sh", "-c", "echo ready; sleep 60")
	p.WaitFor("(?m)^ready")
	before := cpu(b, p.PID())
	<-time.After(window)
	used := cpu(b, p.PID()) - before
	fmt.Printf("idle for %s: %.2f%% of a core, %s resident\n", window, 100*used.Seconds()/window.Seconds(), rss(b, p.PID()))
}

// cpu is the user and system time of a process, from proc_pid_stat(5), in ticks of 10 ms.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func rss(b *testing.B, pid int) string {
	b.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Fatal(err)
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(raw)
	kb, _ := strconv.Atoi(string(m[1]))
	return fmt.Sprintf("%.1f MiB", float64(kb)/1024)
}
