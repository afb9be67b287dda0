package framework_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reprieve-dev/reprieve/infra/framework"
)

// archive is a zip with the given members, name after content, the way torch.save does it: stored.
func archive(t testing.TB, members ...string) string {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for i := 0; i < len(members); i += 2 {
		f, err := w.CreateHeader(&zip.FileHeader{Name: "archive/" + members[i], Method: zip.Store})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(members[i+1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.String()
}

// with64 adds what torch.save's writer always adds: the zip64 end record and its locator.
func with64(plain string) string {
	end := len(plain) - 22
	record := []byte(plain[end:])
	le := binary.LittleEndian
	b := []byte("PK\x06\x06")
	b = le.AppendUint64(b, 44)
	b = le.AppendUint16(b, 45)
	b = le.AppendUint16(b, 45)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, uint64(le.Uint16(record[10:])))
	b = le.AppendUint64(b, uint64(le.Uint16(record[10:])))
	b = le.AppendUint64(b, uint64(le.Uint32(record[12:])))
	b = le.AppendUint64(b, uint64(le.Uint32(record[16:])))
	b = append(b, "PK\x06\x07"...)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint64(b, uint64(end))
	b = le.AppendUint32(b, 1)
	return plain[:end] + string(b) + plain[end:]
}

// saturate writes the largest values into the end record, which sends readers to the zip64 one.
func saturate(whole string) string {
	b := []byte(whole)
	for i := len(b) - 14; i < len(b)-2; i++ {
		b[i] = 0xff
	}
	return string(b)
}

func torchUnit(t testing.TB, name, content string) framework.Unit {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := framework.ByName("torch", framework.Options{})
	if err != nil {
		t.Fatal(err)
	}
	units, err := f.Scan(dir, framework.Evidence{})
	if err != nil || len(units) != 1 {
		t.Fatalf("got %v, %v, want one unit", units, err)
	}
	return units[0]
}

func TestTorchCompleteness(t *testing.T) {
	plain := archive(t, "data.pkl", "x", "data/0", strings.Repeat("w", 1000), "version", "3\n")
	other := archive(t, "data.pkl", "x")
	comment := plain[:len(plain)-2] + "\x03\x00abc"
	for _, tc := range []struct{ name, content, why string }{
		{"whole", plain, ""},
		{"zip64", with64(plain), ""},
		{"zip64, saturated", saturate(with64(plain)), ""},
		{"with a comment", comment, ""},
		{"no members", archive(t), ""},
		{"empty", "", "its end is missing"},
		{"no zip", strings.Repeat("x", 5000), "its end is missing"},
		{"only the beginning", plain[:500], "its end is missing"},
		{"a byte behind", plain + "x", "its end is missing"},
		{"zeroes behind", plain + strings.Repeat("\x00", 4096), "its end is missing"},
		{"a hole in the middle", plain[:100] + plain[200:], "its directory is not where"},
		{"something before", "xx" + plain, "its directory is not where"},
		{"a new end on an old beginning", strings.Repeat("\x00", len(plain)-len(other)) + other, "its directory is not where"},
		{"header not written yet", strings.Repeat("\x00", 30) + plain[30:], `"archive/data.pkl" is not whole`},
		{"directory overwritten", plain[:len(plain)-60] + strings.Repeat("\x00", 38) + plain[len(plain)-22:], "is not whole"},
		{"zip64 record missing", saturate(plain), "its directory is not where"},
		{"zip64 locator leads nowhere", strings.Replace(with64(plain), "PK\x06\x06", "PK\x06\x05", 1), "its end record is damaged"},
	} {
		for _, ext := range []string{".pt", ".pth", ".ckpt"} {
			u := torchUnit(t, "m"+ext, tc.content)
			if u.Complete != (tc.why == "") || !strings.Contains(u.Why, tc.why) || (tc.why == "") != (u.Why == "") {
				t.Errorf("%s: got %v %q, want %q", tc.name, u.Complete, u.Why, tc.why)
			}
		}
	}
}

// Whatever a crash or a writer that is not done leaves, it is not taken for complete.
func TestTorchTruncatedAnywhere(t *testing.T) {
	for _, whole := range []string{archive(t, "data.pkl", "x", "data/0", "wwww"), with64(archive(t, "data.pkl", "x", "data/0", "wwww"))} {
		dir := t.TempDir()
		path := filepath.Join(dir, "m.pt")
		f, err := framework.ByName("torch", framework.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for n := range len(whole) + 1 {
			if err := os.WriteFile(path, []byte(whole[:n]), 0o644); err != nil {
				t.Fatal(err)
			}
			units, err := f.Scan(dir, framework.Evidence{})
			if err != nil {
				t.Fatal(err)
			}
			if got, want := units[0].Complete, n == len(whole); got != want {
				t.Errorf("%d of %d bytes: complete is %v", n, len(whole), got)
			}
		}
	}
}

func TestTorchIgnoresOthers(t *testing.T) {
	d := newTree(t)
	d.put("step-1.bin", "no zip")
	d.put("step-2.txt", archive(t))
	d.put("step-3.pt/inside", "x")
	d.put("step-4.bin", archive(t, "data.pkl", ""))
	got := summary(d.scan(byName(t, "torch", ""), framework.Evidence{Settled: true}))
	if len(got) != 1 || got[0] != "step-4.bin 4 step-4.bin" {
		t.Errorf("got %q, want step-4.bin alone", got)
	}
}

// A verdict is kept, but not beyond a change.
func TestTorchSeesChanges(t *testing.T) {
	d := newTree(t)
	f := byName(t, "torch", "")
	whole := archive(t, "data.pkl", "")
	for i, tc := range []struct {
		content  string
		complete bool
	}{{whole, true}, {whole, true}, {whole[:20], false}, {whole, true}, {strings.Repeat("x", len(whole)), false}} {
		d.put("m-1.pt", tc.content)
		for range 2 {
			if got := d.scan(f, framework.Evidence{})[0].Complete; got != tc.complete {
				t.Errorf("%d: complete is %v, want %v", i, got, tc.complete)
			}
		}
	}
	// Within one step of the clock, the same size: no verdict is kept of a file so young.
	path := filepath.Join(d.dir, "m-1.pt")
	now := time.Now()
	for _, content := range []string{whole, strings.Repeat("x", len(whole))} {
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now, now); err != nil {
			t.Fatal(err)
		}
		if got := d.scan(f, framework.Evidence{})[0].Complete; got != (content == whole) {
			t.Errorf("young file: complete is %v", got)
		}
	}
}

// The pickles are Python's own, of the protocol in front:
//
//	a: {"model": {"w": [1, 2]}, "global_step": 123456, "step": 7}
//	b: {"opt": {"state": {0: {"step": 9, "x": 1}}, "y": 1}, "epoch": 3, "step": 70000}
//	c: {"a": {"step": 5, "b": 1}, "c": 1}
//	d: {"x": "step", "step": 2**33, "iteration": True}
func TestTorchStepFromPickle(t *testing.T) {
	for _, tc := range []struct {
		name, pickle string
		want         int64
	}{
		{"0a", "286470300a566d6f64656c0a70310a286470320a56770a70330a286c70340a49310a6149320a61737356676c6f62616c5f737465700a70350a493132333435360a7356737465700a70360a49370a732e", 123456},
		{"0d", "286470300a56780a70310a56737465700a70320a7367320a4c383538393933343539324c0a7356697465726174696f6e0a70330a4930310a732e", 1 << 33},
		{"1a", "7d71002858050000006d6f64656c71017d710258010000007771035d7104284b014b026573580b000000676c6f62616c5f7374657071054a40e2010058040000007374657071064b07752e", 123456},
		{"2a", "80027d71002858050000006d6f64656c71017d710258010000007771035d7104284b014b026573580b000000676c6f62616c5f7374657071054a40e2010058040000007374657071064b07752e", 123456},
		{"2b", "80027d71002858030000006f707471017d7102285805000000737461746571037d71044b007d71052858040000007374657071064b0958010000007871074b01757358010000007971084b0175580500000065706f636871094b0368064a70110100752e", 70000},
		{"2c", "80027d71002858010000006171017d71022858040000007374657071034b0558010000006271044b017558010000006371054b01752e", -1},
		{"2d", "80027d7100285801000000787101580400000073746570710268028a0500000000025809000000697465726174696f6e710388752e", 1 << 33},
		{"4a", "80049538000000000000007d94288c056d6f64656c947d948c0177945d94284b014b0265738c0b676c6f62616c5f73746570944a40e201008c0473746570944b07752e", 123456},
		{"4b", "80049546000000000000007d94288c036f7074947d94288c057374617465947d944b007d94288c0473746570944b098c0178944b0175738c0179944b01758c0565706f6368944b0368064a70110100752e", 70000},
		{"4c", "80049522000000000000007d94288c0161947d94288c0473746570944b058c0162944b01758c0163944b01752e", -1},
		{"5d", "80059526000000000000007d94288c0178948c04737465709468028a0500000000028c09697465726174696f6e9488752e", 1 << 33},
		{"negative", hex.EncodeToString([]byte("\x80\x02}X\x04\x00\x00\x00stepJ\xff\xff\xff\xffs.")), -1},
		{"cut off", hex.EncodeToString([]byte("\x80\x02}X\x04\x00\x00\x00stepJ\xff")), -1},
		{"no pickle", hex.EncodeToString([]byte("step: 5")), -1},
	} {
		raw, err := hex.DecodeString(tc.pickle)
		if err != nil {
			t.Fatal(err)
		}
		u := torchUnit(t, "last.ckpt", archive(t, "data.pkl", string(raw)))
		if u.Step != tc.want || !u.Complete {
			t.Errorf("%s: got step %d (%s), want %d", tc.name, u.Step, u.Why, tc.want)
		}
		if u := torchUnit(t, "last-77.ckpt", archive(t, "data.pkl", string(raw))); u.Step != 77 {
			t.Errorf("%s: got step %d, want that of the name", tc.name, u.Step)
		}
	}
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	f, _ := w.Create("data.pkl") // compressed
	_, _ = f.Write([]byte("\x80\x02}X\x04\x00\x00\x00stepK\x05s."))
	_ = w.Close()
	if u := torchUnit(t, "last.ckpt", buf.String()); u.Step != 5 {
		t.Errorf("compressed: got step %d, want 5", u.Step)
	}
}

// What is taken for a whole archive can be read by an independent reader.
func FuzzTorchArchive(f *testing.F) {
	f.Add([]byte(archive(f, "data.pkl", "x", "data/0", "wwww")))
	f.Add([]byte(with64(archive(f, "data.pkl", "x"))))
	f.Add([]byte(saturate(with64(archive(f, "data.pkl", "x")))))
	f.Add([]byte(archive(f)))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !torchUnit(t, "m.pt", string(data)).Complete {
			return
		}
		r, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
			t.Fatalf("taken for complete, but: %v", err)
		}
		for _, m := range r.File {
			start, err := m.DataOffset()
			if err != nil || start+int64(m.CompressedSize64) > int64(len(data)) {
				t.Errorf("member %q is not whole: %d+%d, %v", m.Name, start, m.CompressedSize64, err)
			}
		}
	})
}

func FuzzTorchPickle(f *testing.F) {
	for _, s := range []string{"80027d7100285801000000787101580400000073746570710268028a0500000000025809000000697465726174696f6e710388752e",
		"286470300a56780a70310a56737465700a70320a7367320a4c383538393933343539324c0a7356697465726174696f6e0a70330a4930310a732e"} {
		raw, _ := hex.DecodeString(s)
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		u := torchUnit(t, "last.pt", archive(t, "data.pkl", string(data)))
		if !u.Complete || u.Step < -1 {
			t.Errorf("got complete %v, step %d", u.Complete, u.Step)
		}
	})
}
