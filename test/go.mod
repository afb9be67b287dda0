module github.com/reprieve-dev/reprieve/test

go 1.26.0

require github.com/reprieve-dev/reprieve v0.0.0

replace github.com/reprieve-dev/reprieve => ../
