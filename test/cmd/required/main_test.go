package main_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tests is a package whose tests end in every way.
const tests = `package p

import (
	"os"
	"testing"
)

func TestGood(t *testing.T) {
	t.Log("said by the good one")
	t.Run("sub", func(t *testing.T) { t.Log("said by its subtest") })
}

func TestOther(t *testing.T) {}

func TestMood(t *testing.T) {
	switch os.Getenv("MOOD") {
	case "fail":
		t.Run("sub", func(t *testing.T) { t.Error("said by the failing one") })
	case "skip":
		t.Skip("not today")
	case "skip sub":
		t.Run("sub", func(t *testing.T) { t.Skip("not today") })
	case "panic":
		panic("said in panic")
	case "exit":
		os.Exit(0)
	}
}
`

func TestRequired(t *testing.T) {
	dir := t.TempDir()
	bin := filepath.Join(dir, "required")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	write := func(name, text string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write("go.mod", "module github.com/reprieve-dev/reprieve/m\n\ngo 1.26\n")
	write("p/p_test.go", tests)
	write("none/none.go", "package none\n")
	write("broken/broken.go", "package broken\n\nvar x int = \"\"\n")
	write("broken/broken_test.go", "package broken\n")
	run := func(list, mood string, packages ...string) (string, int) {
		t.Helper()
		test := exec.Command("go", append([]string{"test", "-json", "-count=1"}, packages...)...)
		test.Dir, test.Env = dir, append(os.Environ(), "MOOD="+mood, "GOFLAGS=-mod=mod")
		input, err := test.Output()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		required := exec.Command(bin, write("list.txt", list))
		required.Stdin = strings.NewReader("make: entering\n" + string(input))
		out, err := required.CombinedOutput()
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return string(out), required.ProcessState.ExitCode()
	}
	const good = "# a comment\n\nm/p TestGood\nm/p TestOther\n"
	for name, c := range map[string]struct {
		list, mood string
		packages   []string
		code       int
		says       []string
	}{
		"all well":            {good, "", []string{"./p", "./none"}, 0, []string{"make: entering\n", "ok  \tgithub.com/reprieve-dev/reprieve/m/p", "4 tests passed, 0 failed, 0 skipped, 0 required ones missing"}},
		"a subtest":           {"m/p TestGood/sub", "", []string{"./p"}, 0, nil},
		"failure":             {good, "fail", []string{"./p"}, 1, []string{"said by the failing one", "failed: m/p TestMood/sub\n", "FAIL\tgithub.com/reprieve-dev/reprieve/m/p"}},
		"skipped":             {good, "skip", []string{"./p"}, 1, []string{"skipped, which no test may be: m/p TestMood\n"}},
		"skipped below":       {good, "skip sub", []string{"./p"}, 1, []string{"skipped, which no test may be: m/p TestMood/sub\n"}},
		"panic":               {good, "panic", []string{"./p"}, 1, []string{"said in panic", "failed: m/p TestMood\n"}},
		"exit in mid test":    {good, "exit", []string{"./p"}, 1, []string{"m/p TestMood"}},
		"missing":             {good + "m/p TestGone\n", "", []string{"./p"}, 1, []string{"required, but did not run: m/p TestGone\n", "1 required ones missing"}},
		"of another package":  {"m/q TestGood\n", "", []string{"./p"}, 1, []string{"required, but did not run: m/q TestGood\n"}},
		"does not build":      {good, "", []string{"./p", "./broken"}, 1, []string{`cannot use "" (untyped string constant) as int value`}},
		"nothing ran":         {"", "", []string{"./none"}, 1, []string{"0 tests passed"}},
		"no such package":     {"", "", []string{"./p", "./nowhere"}, 1, nil},
		"required and failed": {"m/p TestMood\n", "fail", []string{"./p"}, 1, []string{"0 required ones missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			out, code := run(c.list, c.mood, c.packages...)
			if code != c.code {
				t.Errorf("exit code: got %d, want %d\n%s", code, c.code, out)
			}
			for _, want := range c.says {
				if !strings.Contains(out, want) {
					t.Errorf("got\n%s\nwant it to say %q", out, want)
				}
			}
			for _, chatter := range []string{"said by the good one", "=== RUN   TestGood", "no test files"} {
				if strings.Contains(out, chatter) {
					t.Errorf("got\n%s\nwant no %q", out, chatter)
				}
			}
		})
	}
	out, err := exec.Command(bin).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "usage") {
		t.Errorf("without a list: got %v, %s, want its usage", err, out)
	}
}
