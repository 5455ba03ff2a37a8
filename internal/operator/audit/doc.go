// Package audit asks whether in a consumer's database holds what must hold. It reads
// the catalog, the newest claims, and what indexes find, and changes nothing.
//
// Each [Finding] says what is wrong and what to do. What was cut short is named as
// well: nobody knows what it would have found.
package audit
